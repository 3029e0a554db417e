//! Agents and servers for these tests.

use crate::engine::{BLOCK_SIZE, Engine};
use kvasir_feed::feed::SourceConfig;
use kvasir_feed::journal::JournalConfig;
use kvasir_proto::convert::WorkerAddress;
use kvasir_proto::pb;
use kvasir_proto::types::{CopyMode, Incarnation, PartitionKey, WorkerId};
use kvasir_sim::client;
use kvasir_sim::server::Server;
use kvasir_tls::Dialer;
use kvbm_agent::agent::{Agent, AgentConfig, HEARTBEAT_INTERVAL_DEFAULT, SourcesConfig};
use kvbm_agent::load::LoadConfig;
use kvbm_agent::service::ServiceConfig;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::time::timeout;

pub const MODEL: &str = "m";
pub const WORKER: &str = "w";
pub const SOURCE: &str = "agent";
pub const INCARNATION: Incarnation = Incarnation(7);
/// Nothing in these tests takes nearly as long.
pub const PATIENCE: Duration = Duration::from_secs(60);

pub fn url(address: SocketAddr) -> String {
    format!("http://{address}")
}

pub fn address() -> WorkerAddress {
    let partition = PartitionKey::new(MODEL, "").expect("a name");
    WorkerAddress { partition, worker: WorkerId::new(WORKER).expect("a name") }
}

/// An agent that counts copies, as the engine does.
pub fn config(indexers: Vec<String>) -> AgentConfig {
    let source = SourceConfig {
        address: address(),
        name: SOURCE.to_owned(),
        block_size: BLOCK_SIZE,
        incarnation: INCARNATION,
        first_sequence: 0,
        journal: JournalConfig { copy_mode: CopyMode::Counted, ..JournalConfig::DEFAULT },
    };
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    AgentConfig {
        source,
        journal_dir: None,
        sources: SourcesConfig::default(),
        blocks: None,
        indexers,
        engine_pool: None,
        pool_indexers: Vec::new(),
        dialer: Dialer::default(),
        broker: None,
        zmq: None,
        loads: LoadConfig::DEFAULT,
        registration: None,
        deregister: false,
        heartbeat_interval: HEARTBEAT_INTERVAL_DEFAULT,
        listen: Some(any),
        guard: kvasir_process::access::Guard::default(),
        service: ServiceConfig::DEFAULT,
    }
}

pub async fn start(config: AgentConfig) -> Agent {
    Agent::start(config).await.expect("an agent")
}

/// Publishes so many batches of an engine; returns the number of the last.
pub fn publish(agent: &Agent, engine: &mut Engine, batches: u64) -> u64 {
    let sequences = (0..batches).map(|_| agent.publish(0, engine.batch()).expect("a batch"));
    sequences.last().expect("at least one batch")
}

pub async fn delivered(agent: &Agent, sequence: u64) {
    let waited = timeout(PATIENCE, agent.delivered(sequence)).await;
    waited.unwrap_or_else(|_late| panic!("{sequence} is not delivered: {:?}", agent.uplinks()));
}

/// A server that knows the worker.
pub async fn server(grpc: SocketAddr, http: SocketAddr) -> Server {
    let server = Server::start(grpc, http).await.expect("a server");
    register(&server, None).await;
    server
}

/// Makes the worker known to a server, and where its agent can be asked.
pub async fn register(server: &Server, local: Option<SocketAddr>) {
    register_at(server.addresses.grpc, local).await;
}

/// Like [`register`], at a server's address.
pub async fn register_at(server: SocketAddr, local: Option<SocketAddr>) {
    let mut indexer = client::connect(server).await.expect("a server that listens");
    let request = pb::RegisterWorkerRequest {
        worker_id: WORKER.to_owned(),
        model: MODEL.to_owned(),
        block_size: BLOCK_SIZE,
        local_indexer_endpoint: local.map(url).unwrap_or_default(),
        ..Default::default()
    };
    indexer.register_worker(request).await.expect("a first worker");
}

/// What an index holds for the worker.
pub async fn indexed(server: &Server) -> BTreeMap<u64, u32> {
    indexed_at(server.addresses.grpc).await
}

/// Like [`indexed`], at a server's address.
pub async fn indexed_at(server: SocketAddr) -> BTreeMap<u64, u32> {
    let mut indexer = client::connect(server).await.expect("a server that listens");
    client::dump_device_copies(&mut indexer, MODEL, WORKER).await.expect("a dump")
}
