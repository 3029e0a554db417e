//! Agents that speak over NATS, and what others hear of them.

use crate::engine::{BLOCK_SIZE, Engine};
use async_nats::{Client, Subscriber, jetstream};
use futures::StreamExt;
use kvasir_feed::feed::SourceConfig;
use kvasir_feed::journal::JournalConfig;
use kvasir_process::nats::{NatsAccess, NatsServers};
use kvasir_proto::broker::{STREAM, message_id};
use kvasir_proto::codec::decode;
use kvasir_proto::convert::{
    BrokerMessage, LOCAL_INDEXER_BY_BROKER, Registration, SourceMessage, WorkerAddress,
    WorkerProfile,
};
use kvasir_proto::pb;
use kvasir_proto::types::{
    CopyMode, EngineFacts, EngineKind, HolderKind, Incarnation, PartitionKey, WorkerId,
};
use kvasir_tests::nats::NatsServer;
use kvasir_tls::Dialer;
use kvbm_agent::agent::{Agent, AgentConfig, HEARTBEAT_INTERVAL_DEFAULT, SourcesConfig};
use kvbm_agent::broker::{BrokerConfig, BrokerStatus, Delivery};
use kvbm_agent::load::LoadConfig;
use kvbm_agent::service::ServiceConfig;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;
use tempfile::TempDir;
use tokio::time::timeout;

pub const MODEL: &str = "org/m";
pub const WORKER: &str = "w.0";
pub const SOURCE: &str = "agent";
pub const INCARNATION: Incarnation = Incarnation(7);
/// Nothing in these tests takes nearly as long.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// A broker in a folder of its own.
pub struct Broker {
    pub server: NatsServer,
    _folder: TempDir,
}

impl Broker {
    pub async fn start() -> Self {
        Self::start_with("").await
    }

    pub async fn start_with(configuration: &str) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let server = NatsServer::start_with(folder.path(), configuration).await;
        Self { server: server.expect("a server"), _folder: folder }
    }

    pub async fn client(&self) -> Client {
        async_nats::connect(self.server.url()).await.expect("a connection")
    }

    /// What is published to a subject from now on.
    pub async fn listen(&self, subject: &str) -> Subscriber {
        let client = self.client().await;
        let heard = client.subscribe(subject.to_owned()).await.expect("a subscription");
        // The server has it by the time it answers.
        let nobody = client.new_inbox();
        client.request(nobody, "".into()).await.expect_err("nobody listens");
        heard
    }

    /// All that the stream has, oldest first, with the ids.
    pub async fn stream(&self) -> Vec<(String, BrokerMessage)> {
        let stream = jetstream::new(self.client().await).get_stream(STREAM).await;
        let stream = stream.expect("the stream");
        let last = stream.get_info().await.expect("its state").state.last_sequence;
        let mut messages = Vec::new();
        for sequence in 1..=last {
            let message = stream.get_raw_message(sequence).await.expect("a message");
            let id = message.headers.get("Nats-Msg-Id").expect("an id").to_string();
            messages.push((id, read(message.payload)));
        }
        messages
    }

    /// The numbers of the batches of a life that the stream has, in its order. Each has its id.
    pub async fn numbers(&self, life: Incarnation) -> Vec<u64> {
        let messages = self.stream().await.into_iter().filter_map(|(id, message)| {
            let number = batch(&message).sequence;
            assert_eq!(id, message_id(&address(), SOURCE, message.incarnation, number));
            (message.incarnation == life).then_some(number)
        });
        messages.collect()
    }
}

pub fn address() -> WorkerAddress {
    let partition = PartitionKey::new(MODEL, "").expect("a name");
    WorkerAddress { partition, worker: WorkerId::new(WORKER).expect("a name") }
}

pub fn registration() -> Registration {
    let WorkerAddress { partition, worker } = address();
    Registration {
        worker,
        partition,
        block_size: BLOCK_SIZE,
        engine: EngineKind::Custom,
        endpoints: Vec::new(),
        // What the source says is what counts.
        copy_mode: CopyMode::Set,
        loss_policy: None,
        lora_names: BTreeMap::new(),
        medium_ttls: BTreeMap::new(),
        connector_chunks: BTreeMap::new(),
        facts: EngineFacts::default(),
        local_indexer: Some(LOCAL_INDEXER_BY_BROKER.to_owned()),
        lease: Some(Duration::from_secs(60)),
        profile: WorkerProfile::default(),
        kind: HolderKind::Worker,
        pools: Vec::new(),
    }
}

/// An agent that counts copies, as the engine does, and serves both ways.
pub fn config(broker: &Broker, delivery: Delivery) -> AgentConfig {
    let source = SourceConfig {
        address: address(),
        name: SOURCE.to_owned(),
        block_size: BLOCK_SIZE,
        incarnation: INCARNATION,
        first_sequence: 0,
        journal: JournalConfig { copy_mode: CopyMode::Counted, ..JournalConfig::DEFAULT },
    };
    let servers =
        NatsServers::read(&broker.server.url().into(), NatsAccess::default()).expect("a server");
    let registration = registration();
    AgentConfig {
        blocks: None,
        source,
        journal_dir: None,
        sources: SourcesConfig::default(),
        indexers: Vec::new(),
        engine_pool: None,
        pool_indexers: Vec::new(),
        dialer: Dialer::default(),
        broker: Some(BrokerConfig { servers, delivery, registration, deregister: false }),
        zmq: None,
        registration: None,
        deregister: false,
        loads: LoadConfig::DEFAULT,
        heartbeat_interval: HEARTBEAT_INTERVAL_DEFAULT,
        listen: Some(SocketAddr::from(([127, 0, 0, 1], 0))),
        guard: kvasir_process::access::Guard::default(),
        service: ServiceConfig::DEFAULT,
    }
}

pub async fn start(config: AgentConfig) -> Agent {
    Agent::start(config).await.expect("an agent")
}

/// An agent that publishes, and hears questions.
pub async fn start_connected(config: AgentConfig) -> Agent {
    let agent = start(config).await;
    status(&agent, |status| status.connected && status.answering).await;
    agent
}

/// Waits until the agent says so of its broker.
pub async fn status(agent: &Agent, holds: impl FnMut(&BrokerStatus) -> bool) -> BrokerStatus {
    let mut told = agent.watch_broker().expect("a broker");
    let waited = timeout(PATIENCE, told.wait_for(holds)).await;
    match waited {
        Ok(status) => status.expect("the agent is there").clone(),
        Err(_late) => panic!("it is not so: {:?}", agent.broker()),
    }
}

/// Publishes so many batches of an engine; returns the number of the last.
pub fn publish(agent: &Agent, engine: &mut Engine, batches: u64) -> u64 {
    let sequences = (0..batches).map(|_| agent.publish(0, engine.batch()).expect("a batch"));
    sequences.last().expect("at least one batch")
}

pub async fn delivered(agent: &Agent, sequence: u64) {
    let waited = timeout(PATIENCE, agent.delivered(sequence)).await;
    waited.unwrap_or_else(|_late| panic!("{sequence} is not delivered: {:?}", agent.broker()));
}

/// The next message of a subscription.
pub async fn heard(subscriber: &mut Subscriber) -> async_nats::Message {
    let message = timeout(PATIENCE, subscriber.next()).await.expect("a message in time");
    message.expect("the connection is there")
}

pub fn read(payload: bytes::Bytes) -> BrokerMessage {
    let message: pb::BrokerMessage = decode(payload).expect("a message within its bounds");
    let message = BrokerMessage::try_from(message).expect("a valid message");
    let expected = Registration { copy_mode: CopyMode::Counted, ..registration() };
    assert_eq!((&message.registration, &*message.source), (&expected, SOURCE));
    message
}

pub fn batch(message: &BrokerMessage) -> &pb::PublishBatch {
    match &message.message {
        SourceMessage::Batch(batch) => batch,
        SourceMessage::Heartbeat(_) | SourceMessage::Goodbye => panic!("no batch: {message:?}"),
    }
}
