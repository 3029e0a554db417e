//! Whose place it is: a worker's at an index, and a source's at an agent.

use crate::engine::{BLOCK_SIZE, Engine};
use crate::harness::{
    INCARNATION, MODEL, PATIENCE, WORKER, address, config, delivered, indexed, publish, start, url,
};
use crate::relay::{engine, load, relay};
use kvasir_feed::disk::{NewIncarnation, Verdict};
use kvasir_feed::feed::new_incarnation;
use kvasir_feed::uplink::{SourceIdentity, Uplink, UplinkError, UplinkStatus};
use kvasir_proto::convert::Registration;
use kvasir_proto::pb;
use kvasir_proto::types::{BlockName, CopyMode, KvEvent, LocalHash, StoredBlock, Tier};
use kvasir_sim::client;
use kvasir_sim::server::Server;
use kvbm_agent::agent::{Agent, AgentConfig};
use kvbm_agent::ingest::IngestConfig;
use kvbm_agent::relay::RelayConfig;
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;
use tokio::time::{sleep, timeout};

const LEASE: Duration = Duration::from_secs(2);
const HEARTBEATS: Duration = Duration::from_millis(100);
const LOOK: Duration = Duration::from_millis(20);

fn request(worker: &str) -> pb::RegisterWorkerRequest {
    pb::RegisterWorkerRequest {
        worker_id: worker.to_owned(),
        model: MODEL.to_owned(),
        block_size: BLOCK_SIZE,
        lease_ms: u32::try_from(LEASE.as_millis()).expect("a short time"),
        ..Default::default()
    }
}

/// An agent that registers its worker.
fn registering(index: &Server) -> AgentConfig {
    let mut config = config(vec![url(index.addresses.grpc)]);
    let registration: Registration = request(WORKER).try_into().expect("a valid registration");
    (config.registration, config.heartbeat_interval) = (Some(registration), HEARTBEATS);
    config.source.journal.copy_mode = CopyMode::Set;
    config
}

async fn uplink(agent: &Agent, wanted: impl FnMut(&UplinkStatus) -> bool) -> UplinkStatus {
    let mut told = agent.watch_uplinks().remove(0);
    let told = timeout(PATIENCE, told.wait_for(wanted)).await;
    told.expect("it comes to that").expect("the agent is there").clone()
}

/// Two agents of one name: the index hears the one that is there, and tells the other so.
#[tokio::test]
async fn who_speaks_for_a_worker_keeps_its_place() {
    let mut index = Server::start_anywhere().await.expect("a server");
    let first = start(registering(&index)).await;
    let mut engine = Engine::new(1);
    let last = publish(&first, &mut engine, 20);
    delivered(&first, last).await;
    let second = start(AgentConfig { deregister: true, ..registering(&index) }).await;
    publish(&second, &mut Engine::new(2), 20);
    let refused = uplink(&second, |uplink| uplink.error.is_some()).await;
    let text = refused.error.as_deref().unwrap_or_default();
    assert!(text.contains("another agent serves worker w (model m)"), "{text}");
    assert!(text.contains("give each its own worker_id, or stop the other"), "{text}");
    assert!(refused.refused && !refused.connected, "{refused:?}");
    assert!(second.stop(PATIENCE).await);
    let last = publish(&first, &mut engine, 20);
    delivered(&first, last).await;
    assert_eq!(uplink(&first, |uplink| uplink.connected).await.streams, 1);
    assert_eq!(indexed(&index).await.len(), engine.truth().len());
    // The place is free once it has gone.
    assert!(first.stop(PATIENCE).await);
    let third = start(registering(&index)).await;
    uplink(&third, |uplink| uplink.connected).await;
    assert!(third.stop(PATIENCE).await);
    index.stop().await;
}

fn stored(name: u64) -> Vec<KvEvent> {
    let blocks = vec![StoredBlock { name: BlockName(name), local: LocalHash(name) }];
    vec![KvEvent::Stored { parent: None, tier: Tier::Device, blocks }]
}

/// An engine's stream to its agent.
async fn stream(agent: &Agent, source: &str) -> Result<Uplink, UplinkError> {
    let address = address();
    let identity = SourceIdentity {
        partition: address.partition,
        worker: address.worker,
        source: source.to_owned(),
        block_size: BLOCK_SIZE,
        incarnation: INCARNATION,
    };
    Uplink::open(&url(agent.local_address().expect("a port")), identity).await
}

/// An agent whose journal is in `folder`, on a port that is known.
async fn kept(
    index: &Server,
    folder: &Path,
    listen: SocketAddr,
    patience: Duration,
    relays: Vec<RelayConfig>,
) -> Agent {
    let mut config = registering(index);
    config.sources.relays = relays;
    (config.journal_dir, config.listen) = (Some(folder.to_owned()), Some(listen));
    config.source.incarnation = new_incarnation();
    config.sources.hub.sources_max = 2;
    config.sources.ingest =
        Some(IngestConfig { source_timeout: patience, ..IngestConfig::DEFAULT });
    start(config).await
}

/// One that was told a block by `engine`, and has come back; nobody knows yet whether the engine lived on.
async fn back(
    index: &Server,
    folder: &Path,
    patience: Duration,
    relays: Vec<RelayConfig>,
) -> Agent {
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    let before = kept(index, folder, any, patience, Vec::new()).await;
    let listen = before.local_address().expect("a port");
    let mut engine = stream(&before, "engine").await.expect("a place");
    engine.publish(0, &stored(1)).await.expect("it is taken");
    delivered(&before, 0).await;
    drop(engine);
    assert!(before.stop(PATIENCE).await);
    let agent = kept(index, folder, listen, patience, relays).await;
    assert_eq!(verdict(&agent), Verdict::Pending);
    agent
}

fn verdict(agent: &Agent) -> Verdict {
    agent.disk().expect("it is on disk").verdict
}

/// An agent that waits for its engine says nothing, and its worker goes with its lease. It goes on with its life all the
/// same, and the index fetches what it dropped.
#[tokio::test]
async fn an_agent_that_waits_too_long_for_its_engine_loses_its_worker_and_nothing_else() {
    let mut index = Server::start_anywhere().await.expect("a server");
    let folder = folder();
    let agent = back(&index, folder.path(), PATIENCE, Vec::new()).await;
    let life = agent.status().incarnation;
    let mut client = client::connect(index.addresses.grpc).await.expect("it listens");
    let gone = async {
        while client::find_worker(&mut client, MODEL, WORKER).await.expect("a list").is_some() {
            sleep(LOOK).await;
        }
    };
    timeout(PATIENCE, gone).await.expect("its lease runs out");
    assert_eq!(verdict(&agent), Verdict::Pending);
    let mut engine = stream(&agent, "engine").await.expect("its place");
    engine.publish(0, &stored(2)).await.expect("it is taken");
    delivered(&agent, 1).await;
    assert_eq!((verdict(&agent), agent.status().incarnation), (Verdict::Continued, life));
    assert_eq!(indexed(&index).await.len(), 2);
    drop(engine);
    assert!(agent.stop(PATIENCE).await);
    index.stop().await;
}

/// An engine that is back under another name: its rank is kept for the old one until that is known to be gone, and
/// nothing is acknowledged meanwhile that would not be taken.
#[tokio::test]
async fn a_rank_that_is_kept_for_another_is_waited_for() {
    let mut index = Server::start_anywhere().await.expect("a server");
    let folder = folder();
    let agent = back(&index, folder.path(), LEASE, Vec::new()).await;
    let mut refusals = Vec::new();
    let told = async {
        loop {
            let mut engine = stream(&agent, "renamed").await.expect("a place");
            match engine.publish(0, &stored(7)).await {
                Ok(acknowledged) => return acknowledged,
                Err(error) => refusals.push(error.to_string()),
            }
            sleep(LOOK).await;
        }
    };
    let acknowledged = timeout(PATIENCE, told).await.expect("the old one is given up");
    assert_eq!((acknowledged.rejected, acknowledged.duplicate), (0, false));
    let text = "rank 0 is reserved for source \"engine\", which may continue: try again later";
    assert!(!refusals.is_empty() && refusals.iter().all(|refusal| refusal.contains(text)));
    assert_eq!(verdict(&agent), Verdict::NewIncarnation(NewIncarnation::Engine));
    delivered(&agent, 0).await;
    let held: Vec<u64> = indexed(&index).await.into_keys().collect();
    assert_eq!(held, [7]);
    assert!(agent.stop(PATIENCE).await);
    index.stop().await;
}

/// The same of an engine that is relayed: what it says meanwhile is not lost.
#[tokio::test]
async fn a_relay_waits_for_a_rank_that_is_kept() {
    let mut index = Server::start_anywhere().await.expect("a server");
    let folder = folder();
    let engine = engine().await;
    let relay = RelayConfig { copy_mode: CopyMode::Set, ..relay(&engine) };
    let agent = back(&index, folder.path(), LEASE, vec![relay]).await;
    load(&engine, &mut ChaCha8Rng::seed_from_u64(1), 20).await;
    assert_eq!(verdict(&agent), Verdict::Pending);
    let held = engine.truth().await.expect("it is there").copies;
    uplink(&agent, |uplink| uplink.connected).await;
    let mut client = client::connect(index.addresses.grpc).await.expect("it listens");
    let same = async {
        // There is nothing to dump before the first batch.
        while !client::dump_device_copies(&mut client, MODEL, WORKER)
            .await
            .is_ok_and(|indexed| indexed.keys().eq(held.keys()))
        {
            sleep(LOOK).await;
        }
    };
    timeout(PATIENCE, same).await.expect("the index holds what the engine does");
    for report in agent.hub().reports() {
        assert_eq!((report.counts.not_taken(), report.counts.losses), (0, 0), "{report:?}");
    }
    assert!(agent.stop(PATIENCE).await);
    engine.stop().await;
    index.stop().await;
}

fn folder() -> tempfile::TempDir {
    tempfile::tempdir().expect("a folder")
}
