//! The audit: what the index does not hold as the agent does is found with the next heartbeat, and repaired.

use crate::engine::Engine;
use crate::harness::{
    INCARNATION, MODEL, PATIENCE, WORKER, address, config, delivered, indexed, publish, register,
    start, url,
};
use crate::tamper::{count_bytes, tamper};
use futures::StreamExt;
use kvasir_proto::convert::{LocalDumpQuery, LocalSource};
use kvasir_proto::pb;
use kvasir_proto::pb::local_indexer_client::LocalIndexerClient;
use kvasir_proto::pb::published_event::Event;
use kvasir_proto::types::{BlockName, CopyMode, KvEvent, LocalHash, StoredBlock, Tier};
use kvasir_sim::client;
use kvasir_sim::demo::metrics;
use kvasir_sim::server::Server;
use kvbm_agent::agent::Agent;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

const LOOK: Duration = Duration::from_millis(20);
const HEARTBEATS: Duration = Duration::from_millis(50);

/// How often audits came to something.
async fn audits(server: &Server, outcome: &str) -> f64 {
    let sum = metrics::sum(server.addresses.http, "_audits_total", outcome).await;
    sum.expect("metrics")
}

async fn repaired_blocks(server: &Server) -> f64 {
    let sum = metrics::sum(server.addresses.http, "_repaired_blocks_total", "").await;
    sum.expect("metrics")
}

/// Waits for so many audits that came to something.
async fn audited(server: &Server, outcome: &str, least: f64) {
    let wait = async {
        while audits(server, outcome).await < least {
            sleep(LOOK).await;
        }
    };
    timeout(PATIENCE, wait).await.unwrap_or_else(|_late| panic!("{least} audits: {outcome}"));
}

/// An agent whose batches are changed on their way to an index, by `change`.
async fn tampered(
    server: &Server,
    copy_mode: CopyMode,
    change: impl FnMut(&mut pb::PublishBatch) + Send + 'static,
    beats: &Arc<AtomicBool>,
    tasks: &mut JoinSet<()>,
) -> Agent {
    let between = tamper(url(server.addresses.grpc), change, Arc::clone(beats), tasks).await;
    let mut config = config(vec![url(between)]);
    config.source.journal.copy_mode = copy_mode;
    config.heartbeat_interval = HEARTBEATS;
    start(config).await
}

const BLOCKS: u64 = 1_000_000;
const CHAIN: u64 = 4_000;
/// Every so many-th block is not what it was.
const CORRUPT_EVERY: u64 = 50_021;

fn name(index: u64) -> u64 {
    (index + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// Corrupts single blocks of stored events: one is left out, one has another content, one comes twice under
/// a name that nobody stored.
fn corrupt(batch: &mut pb::PublishBatch, stored: &mut u64, corrupted: &mut u64) {
    for event in &mut batch.events {
        let Some(Event::Stored(stored_event)) = &mut event.event else { continue };
        let count = stored_event.names.len() as u64;
        let due = (*stored..*stored + count).find(|index| index % CORRUPT_EVERY == 7);
        if let Some(index) = due {
            let at = usize::try_from(index - *stored).expect("a small place");
            match *corrupted % 3 {
                // Those below it hang off nothing then; so the last one goes.
                0 => {
                    stored_event.names.pop();
                    stored_event.local_hashes.pop();
                }
                1 => stored_event.names[at] ^= 1,
                _ => stored_event.local_hashes[at] ^= 1,
            }
            *corrupted += 1;
        }
        *stored += count;
    }
}

/// 20 of a million blocks are not as the agent has them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_differs_is_found_in_one_round_and_only_that_is_pulled() {
    let server = Server::start_anywhere().await.expect("a server");
    let mut tasks = JoinSet::new();
    let mut stored = 0;
    let mut corrupted = 0;
    let change = move |batch: &mut pb::PublishBatch| corrupt(batch, &mut stored, &mut corrupted);
    // Not before all is there: else there is one round for each part.
    let beats = Arc::new(AtomicBool::new(false));
    let agent = tampered(&server, CopyMode::Set, change, &beats, &mut tasks).await;
    let local = agent.local_address().expect("it listens");
    let (counted, bytes) = count_bytes(local, &mut tasks).await;
    register(&server, Some(counted)).await;

    let mut last = 0;
    for first in (0..BLOCKS).step_by(CHAIN as usize) {
        let block =
            |index| StoredBlock { name: BlockName(name(index)), local: LocalHash(index << 8) };
        let blocks = (first..first + CHAIN).map(block).collect();
        let event = KvEvent::Stored { parent: None, tier: Tier::Device, blocks };
        last = agent.publish(0, vec![event]).expect("a batch");
    }
    delivered(&agent, last).await;
    beats.store(true, Ordering::Release);
    audited(&server, "repaired", 1.0).await;
    let pulled = bytes.load(Ordering::Relaxed);
    audited(&server, "same", 1.0).await;
    let truth: BTreeMap<u64, u32> = (0..BLOCKS).map(|index| (name(index), 1)).collect();
    assert!(indexed(&server).await == truth, "it holds what the agent does");
    for outcome in ["dumped", "abandoned"] {
        assert_eq!(audits(&server, outcome).await, 0.0, "{outcome}");
    }
    assert_eq!((audits(&server, "differs").await, audits(&server, "repaired").await), (1.0, 1.0));
    // A block under another name is one too many and one too few.
    let repaired = repaired_blocks(&server).await;
    assert!((20.0..60.0).contains(&repaired), "{repaired} blocks");

    let before = bytes.load(Ordering::Relaxed);
    assert_eq!(before, pulled, "nothing more was pulled");
    assert_eq!(dumped(counted).await, BLOCKS);
    let full = bytes.load(Ordering::Relaxed) - before;
    println!("{repaired} blocks repaired with {pulled} bytes; a dump takes {full}");
    assert!(pulled * 100 <= full, "{pulled} of {full} bytes");
}

/// Records of a full dump.
async fn dumped(agent: SocketAddr) -> u64 {
    let mut client = LocalIndexerClient::connect(url(agent)).await.expect("it listens");
    let source = LocalSource { address: address(), name: crate::harness::SOURCE.to_owned() };
    let incarnation = Some(INCARNATION);
    let buckets = None;
    let query = LocalDumpQuery { source, incarnation, chunk_records: 2_048, buckets };
    let request = pb::LocalDumpRequest::from(query);
    let mut parts = client.dump(request).await.expect("a dump").into_inner();
    let mut records = 0;
    while let Some(part) = parts.next().await {
        if let Some(pb::local_dump_response::Part::Chunk(chunk)) = part.expect("a part").part {
            records += chunk.records.len() as u64;
        }
    }
    records
}

/// While the engine goes on, whatever is lost on the way: removals, announcements, contents.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_index_is_repaired_under_load() {
    const SEED: u64 = 5;
    println!("seed {SEED}");
    let server = Server::start_anywhere().await.expect("a server");
    let mut tasks = JoinSet::new();
    let mut random = ChaCha8Rng::seed_from_u64(SEED);
    let lose = move |batch: &mut pb::PublishBatch| {
        for event in &mut batch.events {
            if !random.random_bool(0.01) {
                continue;
            }
            match &mut event.event {
                Some(Event::Stored(stored)) => {
                    stored.names.truncate(1);
                    stored.local_hashes.truncate(1);
                }
                Some(Event::Removed(removed)) => removed.names.truncate(1),
                _ => {}
            }
        }
    };
    let beats = Arc::new(AtomicBool::new(true));
    let agent = tampered(&server, CopyMode::Counted, lose, &beats, &mut tasks).await;
    register(&server, agent.local_address()).await;
    let mut engine = Engine::new(SEED);
    for round in 1..=20_u32 {
        let last = publish(&agent, &mut engine, 100);
        delivered(&agent, last).await;
        let same = audits(&server, "same").await;
        audited(&server, "same", same + 1.0).await;
        let held = indexed(&server).await;
        let truth = engine.truth();
        // How often it is held is not compared.
        assert!(held.keys().eq(truth.keys()), "round {round}");
    }
    assert!(audits(&server, "repaired").await >= 5.0, "much was lost");
}

/// Nothing is lost, and nothing is found: neither under load, nor by an index that was restarted, nor by one that has
/// to read what it holds first.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_clean_soak_repairs_nothing() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().to_str().expect("a name");
    let flags = ["--checkpoint-dir", path, "--checkpoint-interval", "100ms"];
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    let mut server = Server::start_with(any, any, &flags).await.expect("a server");
    let mut config = config(vec![url(server.addresses.grpc)]);
    config.heartbeat_interval = Duration::from_millis(10);
    let agent = start(config).await;
    register(&server, agent.local_address()).await;
    let mut engine = Engine::new(8);
    for restarts in 0..3 {
        let begin = audits(&server, "same").await;
        let mut last = 0;
        while audits(&server, "same").await < begin + 50.0 {
            last = publish(&agent, &mut engine, 20);
            // As an engine's steps do.
            sleep(Duration::from_millis(1)).await;
        }
        delivered(&agent, last).await;
        assert_eq!(indexed(&server).await, engine.truth());
        for outcome in ["differs", "repaired", "dumped"] {
            assert_eq!(audits(&server, outcome).await, 0.0, "{outcome} after {restarts} restarts");
        }
        let addresses = server.addresses;
        server.kill().await;
        server =
            Server::start_with(addresses.grpc, addresses.http, &flags).await.expect("a server");
        let mut index = client::connect(server.addresses.grpc).await.expect("it listens");
        let known = client::find_worker(&mut index, MODEL, WORKER).await.expect("an answer");
        if known.is_none() {
            register(&server, agent.local_address()).await;
        }
    }
}
