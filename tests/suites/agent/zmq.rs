//! The agent as a publisher in vLLM's wire format, read by an index that knows engines only, and by plain
//! sockets of another implementation than the index's.

use crate::engine::{BLOCK_SIZE, Engine};
use crate::harness::{
    self, MODEL, PATIENCE, WORKER, config, delivered, indexed, publish, start, url,
};
use bytes::Bytes;
use kvasir_engine::decode::{EngineKind, Place, RawEvent, decode};
use kvasir_proto::pb;
use kvasir_proto::types::{BlockName, Incarnation, KvEvent, LocalHash, StoredBlock, Tier};
use kvasir_sim::client::{self, Indexer};
use kvasir_sim::server::Server;
use kvbm_agent::agent::{Agent, AgentConfig};
use kvbm_agent::zmq::{UNSENT_BYTES_MAX, ZmqConfig, ZmqEndpoints, ZmqStatus};
use std::net::{SocketAddr, TcpListener};
use std::time::Duration;
use tokio::time::timeout;
use zeromq::{DealerSocket, Socket, SocketRecv, SocketSend, SubSocket, ZmqMessage};

/// A worker whose engine the agent plays.
const PLAYED: (&str, &str) = (MODEL, "played");
const TOPIC: &str = "kv-events";

fn any() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 0))
}

/// An agent that publishes as an engine does, on ports of its own choice.
fn publishing(indexers: Vec<String>) -> AgentConfig {
    let zmq = ZmqConfig { listen: any(), replay: any(), ..ZmqConfig::default() };
    AgentConfig { zmq: Some(zmq), ..config(indexers) }
}

fn endpoints(agent: &Agent) -> ZmqEndpoints {
    agent.zmq_endpoints().expect("it publishes")
}

fn status(agent: &Agent) -> ZmqStatus {
    agent.zmq().expect("it publishes")
}

fn tcp(address: SocketAddr) -> String {
    format!("tcp://{address}")
}

/// Registers the agent as if it were an engine.
async fn register(indexer: &mut Indexer, at: ZmqEndpoints) {
    let request = pb::RegisterWorkerRequest {
        worker_id: PLAYED.1.to_owned(),
        model: MODEL.to_owned(),
        block_size: BLOCK_SIZE,
        engine: pb::Engine::Custom as i32,
        copy_mode: pb::CopyMode::Counted as i32,
        endpoints: vec![pb::EngineEndpoint {
            endpoint: tcp(at.live),
            replay_endpoint: tcp(at.replay),
            topic: TOPIC.to_owned(),
            ..pb::EngineEndpoint::default()
        }],
        ..pb::RegisterWorkerRequest::default()
    };
    indexer.register_worker(request).await.expect("a worker");
}

async fn exact_at(indexer: &mut Indexer, sequence: u64) {
    // Not beyond: there may still be the numbers of an earlier life.
    let is_there = |source: &pb::SourceInfo| {
        let applied = source.applied.as_ref().map(|cursor| cursor.sequence);
        client::is_exact_at(source, sequence) && applied == Some(sequence)
    };
    let waited = client::wait_for_sources(indexer, PLAYED, "exact", PATIENCE, is_there).await;
    waited.expect("the index follows the agent");
}

/// Waits until the agent has published a batch of its present life.
async fn published(agent: &Agent, sequence: u64) {
    let mut status = agent.watch_zmq().expect("it publishes");
    let life = agent.status().incarnation;
    let has = |status: &ZmqStatus| status.incarnation == life && status.published >= Some(sequence);
    let waited = timeout(PATIENCE, status.wait_for(has)).await;
    waited.expect("it is published soon").expect("an agent");
}

/// Late, then in step, over lives that end, by a new agent too: always what the engine holds, and what the
/// agent tells an index over gRPC.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_index_that_expects_an_engine_reads_the_agent() {
    let mut server = harness::server(any(), any()).await;
    let mut indexer = client::connect(server.addresses.grpc).await.expect("a server");
    let mut agent = start(publishing(vec![url(server.addresses.grpc)])).await;
    let at = endpoints(&agent);
    let mut engine = Engine::new(1);
    // Said before anybody listens: only a replay has it.
    let last = publish(&agent, &mut engine, 300);
    published(&agent, last).await;
    register(&mut indexer, at).await;
    exact_at(&mut indexer, last).await;
    check(&server, &mut indexer, &engine, last, &agent).await;
    assert!(status(&agent).replayed_batches > last, "{:?}", status(&agent));
    // In step.
    let last = publish(&agent, &mut engine, 300);
    exact_at(&mut indexer, last).await;
    check(&server, &mut indexer, &engine, last, &agent).await;
    // Another life, whose first batches are numbered as those before; then its second, which is shorter still.
    for (life, batches) in [(8, 200), (9, 5)] {
        agent.begin_incarnation(Incarnation(life), 0);
        engine = Engine::new(1);
        let last = publish(&agent, &mut engine, batches);
        exact_at(&mut indexer, last).await;
        check(&server, &mut indexer, &engine, last, &agent).await;
    }
    // Another agent on the same ports, that has said as much when the index is back, of the same engine from
    // its beginning: nothing but the life tells.
    assert!(agent.stop(PATIENCE).await);
    let mut config = publishing(vec![url(server.addresses.grpc)]);
    config.source.incarnation = Incarnation(10);
    config.zmq = Some(ZmqConfig { listen: at.live, replay: at.replay, ..ZmqConfig::default() });
    agent = start(config).await;
    engine = Engine::new(1);
    let last = publish(&agent, &mut engine, 5);
    exact_at(&mut indexer, last).await;
    let last = publish(&agent, &mut engine, 1);
    exact_at(&mut indexer, last).await;
    check(&server, &mut indexer, &engine, last, &agent).await;
    assert!(agent.stop(PATIENCE).await);
    server.stop().await;
}

/// The index holds what the engine holds, and of the worker that it knows as an engine what it knows of it by
/// the agent's uplink.
async fn check(server: &Server, indexer: &mut Indexer, engine: &Engine, last: u64, agent: &Agent) {
    delivered(agent, last).await;
    let copies = client::dump_device_copies(indexer, PLAYED.0, PLAYED.1).await.expect("a dump");
    assert_eq!(copies, engine.truth());
    assert_eq!(indexed(server).await, copies);
    let played = client::dump_chains(indexer, PLAYED.0, PLAYED.1).await.expect("a dump");
    let told = client::dump_chains(indexer, MODEL, WORKER).await.expect("a dump");
    assert!(!played.is_empty() && played == told, "{} of {}", played.len(), told.len());
}

/// What other implementations read.
struct Reader {
    live: SubSocket,
    replay: DealerSocket,
}

impl Reader {
    /// Connects, and publishes until the subscription has arrived; returns the number of the first batch heard.
    async fn join(agent: &Agent, topic: &str) -> (Self, u64) {
        let at = endpoints(agent);
        let mut live = SubSocket::new();
        let mut replay = DealerSocket::new();
        live.connect(&tcp(at.live)).await.expect("a publisher");
        live.subscribe(topic).await.expect("a publisher");
        replay.connect(&tcp(at.replay)).await.expect("a replay socket");
        let mut reader = Self { live, replay };
        let first = async {
            loop {
                agent.publish(0, vec![KvEvent::Cleared]).expect("a batch");
                let heard = timeout(Duration::from_millis(10), reader.hear()).await;
                if let Ok((sequence, _)) = heard {
                    return sequence;
                }
            }
        };
        let first = timeout(PATIENCE, first).await.expect("a subscription");
        (reader, first)
    }

    /// The next live batch.
    async fn hear(&mut self) -> (u64, Bytes) {
        let message = self.live.recv().await.expect("a message").into_vec();
        let [topic, sequence, payload] = message.as_slice() else { panic!("{message:?}") };
        assert_eq!(topic, TOPIC);
        (number(sequence), payload.clone())
    }

    /// All that is replayed from a number on.
    async fn ask(&mut self, start: u64) -> Vec<(u64, Bytes)> {
        self.replay.send(request(start)).await.expect("a replay socket");
        let mut replayed = Vec::new();
        loop {
            let answer = timeout(PATIENCE, self.replay.recv()).await.expect("an end");
            let answer = answer.expect("a message").into_vec();
            let [empty, topic, sequence, payload] = answer.as_slice() else { panic!("{answer:?}") };
            assert_eq!(empty, "");
            if number(sequence) == u64::MAX {
                assert_eq!((topic.len(), payload.len()), (0, 0));
                return replayed;
            }
            assert_eq!(topic, TOPIC);
            replayed.push((number(sequence), payload.clone()));
        }
    }
}

fn request(start: u64) -> ZmqMessage {
    let mut request = ZmqMessage::from(Bytes::new());
    request.push_back(Bytes::copy_from_slice(&start.to_be_bytes()));
    request
}

fn number(frame: &Bytes) -> u64 {
    u64::from_be_bytes(frame.as_ref().try_into().expect("8 bytes"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replays_are_what_was_published_as_far_as_the_journal_has_it() {
    let mut config = publishing(vec![]);
    config.source.journal.batches_max = 30;
    let agent = start(config).await;
    let (mut reader, first) = Reader::join(&agent, "kv").await;
    let mut engine = Engine::new(1);
    let mut heard = Vec::new();
    let mut last = first;
    for sequence in first + 1..=first + 100 {
        // One after the other: the journal may not overtake what is published of it.
        last = publish(&agent, &mut engine, 1);
        let (number, payload) = timeout(PATIENCE, reader.hear()).await.expect("a batch");
        assert_eq!((number, sequence), (last, last));
        heard.push((number, payload));
    }
    let kept = heard.split_off(heard.len() - 30);
    // From before the journal: the oldest that it has. From within, from its end, and from beyond it.
    assert_eq!(reader.ask(0).await, kept);
    assert_eq!(reader.ask(last - 9).await, kept[20..]);
    assert_eq!(reader.ask(last).await, kept[29..]);
    assert_eq!(reader.ask(last + 1).await, []);
    assert_eq!(reader.ask(u64::MAX).await, []);
    let now = status(&agent);
    assert_eq!((now.replays, now.replayed_batches, now.broken_replays), (5, 41, 0));
    assert_eq!((now.published, now.unsent_batches, now.skipped_batches), (Some(last), 0, 0));
    // In another life nothing is left of this one, and its batches are others though they say the same.
    agent.begin_incarnation(Incarnation(8), 0);
    assert_eq!(reader.ask(0).await, []);
    let mut again = Engine::new(1);
    publish(&agent, &mut again, 1);
    let replayed = reader.ask(0).await;
    assert_eq!(timeout(PATIENCE, reader.hear()).await.expect("a batch"), replayed[0]);
    assert!(agent.stop(PATIENCE).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn batches_name_their_rank_and_topics_are_filtered() {
    let agent = start(publishing(vec![])).await;
    let (mut reader, _) = Reader::join(&agent, TOPIC).await;
    let mut other = SubSocket::new();
    other.connect(&tcp(endpoints(&agent).live)).await.expect("a publisher");
    other.subscribe("other").await.expect("a publisher");
    for rank in [3, 0, 70_000] {
        let last = agent.publish(rank, vec![KvEvent::Cleared]).expect("a batch");
        let payload = loop {
            let (sequence, payload) = timeout(PATIENCE, reader.hear()).await.expect("a batch");
            if sequence == last {
                break payload;
            }
        };
        let batch = decode(&payload, EngineKind::Vllm).expect("a batch");
        assert_eq!(
            (batch.rank, batch.events.as_slice()),
            (Some(rank), [RawEvent::Cleared(Place::default())].as_slice())
        );
    }
    // What was meant for it would have come before.
    assert!(timeout(Duration::ZERO, other.recv()).await.is_err());
    assert!(agent.stop(PATIENCE).await);
}

/// A batch of about half a MiB.
fn large(first: u64) -> Vec<KvEvent> {
    let block = |at: u64| StoredBlock { name: BlockName(at << 32), local: LocalHash(!at) };
    let blocks = (first..first + 28_000).map(block).collect();
    vec![KvEvent::Stored { parent: None, tier: Tier::Device, blocks }]
}

/// What a subscriber that takes nothing leaves behind is bounded; once it takes it, it hears on, and what it
/// missed is in the journal.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_subscriber_that_takes_nothing_loses_messages_and_no_batch() {
    let mut config = publishing(vec![]);
    config.source.journal.bytes_max = 4 * UNSENT_BYTES_MAX;
    let agent = start(config).await;
    let (mut reader, first) = Reader::join(&agent, TOPIC).await;
    let mut last = first;
    while status(&agent).unsent_batches < 20 {
        last = agent.publish(0, large(last)).expect("a batch");
        published(&agent, last).await;
        assert!(last < first + 400, "{:?}", status(&agent));
    }
    let sent = status(&agent);
    assert_eq!(sent.published_batches + sent.unsent_batches, last + 1);
    let mut heard = first;
    let mut missed = Vec::new();
    // A further batch arrives once there is room again.
    while heard < last {
        let next = timeout(Duration::from_millis(50), reader.hear()).await;
        let Ok((sequence, _)) = next else {
            last = agent.publish(0, vec![KvEvent::Cleared]).expect("a batch");
            continue;
        };
        missed.extend(heard + 1..sequence);
        heard = sequence;
    }
    assert!(missed.len() >= 20, "{missed:?}");
    let replayed: Vec<u64> = reader.ask(first).await.iter().map(|(number, _)| *number).collect();
    assert_eq!(replayed, (first..=last).collect::<Vec<_>>());
    assert!(agent.stop(PATIENCE).await);
}

/// A replay that nobody takes is given up; others are answered.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_peer_that_does_not_take_its_replay_holds_up_nobody_for_long() {
    let mut config = publishing(vec![]);
    config.source.journal.bytes_max = UNSENT_BYTES_MAX;
    let agent = start(config).await;
    let mut last = 0;
    for at in 0..60 {
        last = agent.publish(0, large(at)).expect("a batch");
    }
    let mut stalled = DealerSocket::new();
    stalled.connect(&tcp(endpoints(&agent).replay)).await.expect("a replay socket");
    stalled.send(request(0)).await.expect("a replay socket");
    let mut now = agent.watch_zmq().expect("it publishes");
    let begun = timeout(PATIENCE, now.wait_for(|status| status.replayed_batches > 0)).await;
    begun.expect("it is answered").expect("an agent");
    let (mut reader, first) = Reader::join(&agent, TOPIC).await;
    let replayed = reader.ask(last).await;
    assert_eq!(replayed[0].0, last);
    let given_up = status(&agent);
    assert_eq!((given_up.broken_replays, given_up.replays), (1, 1), "{given_up:?}");
    assert!((1..60).contains(&(given_up.replayed_batches - replayed.len() as u64)), "{given_up:?}");
    assert!(first > last);
    assert!(agent.stop(PATIENCE).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_published_is_sent_before_the_end_and_the_ports_are_free_then() {
    let agent = start(publishing(vec![])).await;
    let at = endpoints(&agent);
    let (mut reader, first) = Reader::join(&agent, TOPIC).await;
    let last = publish(&agent, &mut Engine::new(1), 500);
    assert!(agent.stop(PATIENCE).await);
    for sequence in first + 1..=last {
        let (heard, _) = timeout(PATIENCE, reader.hear()).await.expect("a batch");
        assert_eq!(heard, sequence);
    }
    for address in [at.live, at.replay] {
        TcpListener::bind(address).expect("a free port");
    }
}

#[tokio::test]
async fn ports_that_are_taken_and_long_topics_are_errors() {
    let taken = TcpListener::bind(any()).expect("a port");
    let address = taken.local_addr().expect("an address");
    let mut config = publishing(vec![]);
    let zmq = config.zmq.clone().expect("set");
    let refused =
        async |config: AgentConfig| Agent::start(config).await.expect_err("refused").to_string();
    config.zmq = Some(ZmqConfig { replay: address, ..zmq.clone() });
    let text = refused(config.clone()).await;
    assert!(
        text.starts_with(&format!("zmq replay-listen: cannot listen on {address}: ")),
        "{text}"
    );
    config.zmq = Some(ZmqConfig { topic: "t".repeat(257), ..zmq });
    assert_eq!(refused(config).await, "zmq topic: has 257 bytes, the limit is 256");
    let default = ZmqConfig::default();
    assert!(default.listen.ip().is_loopback() && default.replay.ip().is_loopback());
    assert_eq!((default.listen.port(), default.replay.port()), (5_557, 5_558));
}
