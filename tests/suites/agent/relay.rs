//! An engine's own publisher, relayed: whatever is killed, the index ends with what the engine holds.

use crate::engine::prompt_tokens;
use crate::harness::{
    self, INCARNATION, MODEL, PATIENCE, WORKER, config, delivered, indexed, start, url,
};
use kvasir_engine::decode::EngineKind;
use kvasir_feed::hub::HubConfig;
use kvasir_feed::publisher::{Content, KvEventPublisher, NewBlocks};
use kvasir_proto::hash::{Namespace, local_hashes, tokens_le};
use kvasir_proto::pb;
use kvasir_proto::types::{BlockName, CopyMode, Incarnation, SourceState, SourceStatus, Tier};
use kvasir_sim::client::{self, Chain};
use kvasir_sim::engine::{EngineConfig, EngineError, MockEngine, Prompt, Truth};
use kvasir_sim::server::Server;
use kvbm_agent::agent::{Agent, AgentConfig};
use kvbm_agent::relay::RelayConfig;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::time::Duration;
use tokio::join;
use tokio::time::{Instant, timeout};

const BLOCK_SIZE: usize = crate::engine::BLOCK_SIZE as usize;
const SEEDS: u64 = 3;
const ROUNDS: u32 = 8;
/// Requests before, during and after a fault.
const REQUESTS: u64 = 20;

/// An engine of these tests.
pub fn engine_config() -> EngineConfig {
    EngineConfig { block_size: BLOCK_SIZE, capacity_blocks: 400, ..EngineConfig::default() }
}

pub async fn engine() -> MockEngine {
    engine_of(0).await
}

async fn engine_of(dp_rank: u32) -> MockEngine {
    let config = EngineConfig { dp_rank, ..engine_config() };
    MockEngine::start(config).await.expect("an engine")
}

pub fn relay(engine: &MockEngine) -> RelayConfig {
    RelayConfig {
        replay: Some(engine.replay_endpoint().to_owned()),
        // A lost last batch shows soon.
        probe_interval: Duration::from_millis(200),
        ..RelayConfig::new(EngineKind::Vllm, engine.endpoint())
    }
}

fn relaying(engine: &MockEngine, server: &Server, life: Incarnation) -> AgentConfig {
    let mut config = config(vec![url(server.addresses.grpc)]);
    config.source.incarnation = life;
    config.sources.relays = vec![relay(engine)];
    config
}

/// A prompt of which many begin alike.
pub fn prompt(random: &mut ChaCha8Rng) -> Prompt {
    let first = random.random::<u32>();
    let tokens = prompt_tokens(random.random_range(0..12)).into_iter();
    let tokens = tokens.chain((0..random.random_range(1..40)).map(|at| first.wrapping_add(at)));
    let answer = (0..20).map(|at| first.wrapping_add(1 << 20 | at)).collect();
    Prompt { tokens: tokens.collect(), answer }
}

/// Has the engine answer prompts; a restart ends those under way.
pub async fn load(engine: &MockEngine, random: &mut ChaCha8Rng, requests: u64) {
    for _ in 0..requests {
        match engine.run(prompt(random)).await {
            Ok(_) | Err(EngineError::Gone) => {}
            Err(error) => panic!("{error}"),
        }
    }
}

/// Waits until the agent's stream has all that an engine has said, and the index all of that.
async fn settled(agent: &Agent, engine: &MockEngine) -> Truth {
    let truth = engine.truth().await.expect("an engine");
    let mut source = agent.hub().watch(engine.endpoint()).expect("a source");
    let exact = |status: &SourceStatus<Instant>| {
        status.state == SourceState::Exact
            && status.applied.map(|applied| applied.sequence) == truth.last_sequence
    };
    let waited = timeout(PATIENCE, source.wait_for(exact)).await;
    let report = || format!("not at {:?}: {:?}", truth.last_sequence, agent.hub().reports());
    let status = waited.unwrap_or_else(|_late| panic!("{}", report())).expect("a source").clone();
    assert_eq!((status.connected, status.lag_batches()), (true, 0));
    delivered(agent, agent.status().head.expect("something was published")).await;
    truth
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_is_killed_the_index_holds_what_the_engine_holds() {
    for seed in 0..SEEDS {
        println!("seed {seed}");
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let engine = engine().await;
        let mut server = harness::server(any, any).await;
        // Said before anybody listens.
        load(&engine, &mut random, REQUESTS).await;
        let mut agent = start(relaying(&engine, &server, INCARNATION)).await;
        for round in 0..ROUNDS {
            let fault = (round + seed as u32) % 4;
            println!("round {round}: fault {fault}");
            let mut during = ChaCha8Rng::from_rng(&mut random);
            let under_load = load(&engine, &mut during, REQUESTS);
            match fault {
                // The engine.
                0 => join!(under_load, engine.restart()).1.expect("its ports are free"),
                // The agent: the next one knows nothing.
                1 => {
                    drop(agent);
                    under_load.await;
                    let life = Incarnation(100 + u128::from(round));
                    agent = start(relaying(&engine, &server, life)).await;
                }
                // The index.
                2 => {
                    join!(under_load, server.kill());
                    let addresses = server.addresses;
                    server = harness::server(addresses.grpc, addresses.http).await;
                }
                // Batches on their way.
                _ => {
                    engine.drop_next(random.random_range(1..30)).await.expect("an engine");
                    under_load.await;
                }
            }
            load(&engine, &mut random, REQUESTS).await;
            let truth = settled(&agent, &engine).await;
            assert!(truth.copies.len() > 100, "{} blocks", truth.copies.len());
            assert_eq!(indexed(&server).await, truth.copies, "seed {seed}, round {round}");
        }
        let report = agent.hub().reports().remove(0);
        assert_eq!((report.counts.losses, report.problem), (0, None));
        assert!(agent.stop(PATIENCE).await);
        engine.stop().await;
        server.stop().await;
    }
}

/// What the agent knows of its engine, the index says of the worker.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_index_trusts_an_agent_as_far_as_it_trusts_its_engine() {
    const SEED: u64 = 4;
    println!("seed {SEED}");
    let mut random = ChaCha8Rng::seed_from_u64(SEED);
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    let engine = engine().await;
    let server = harness::server(any, any).await;
    let agent = start(relaying(&engine, &server, INCARNATION)).await;
    load(&engine, &mut random, REQUESTS).await;
    settled(&agent, &engine).await;
    let mut index = client::connect(server.addresses.grpc).await.expect("a server that listens");
    let exact = pb::WorkerState::Exact as i32;
    let worker = (MODEL, WORKER);
    let is_exact = |source: &pb::SourceInfo| source.state == exact && source.connected;
    let waited = client::wait_for_sources(&mut index, worker, "exact", PATIENCE, is_exact).await;
    waited.expect("its engine is there");
    engine.stop().await;
    let is_not = |source: &pb::SourceInfo| source.state != exact && !source.connected;
    let waited = client::wait_for_sources(&mut index, worker, "doubted", PATIENCE, is_not).await;
    waited.expect("its engine is away, and that it says");
    let query = pb::FindMatchesRequest {
        model: MODEL.to_owned(),
        local_hashes: vec![1],
        minimum_overlap_blocks: Some(0),
        ..Default::default()
    };
    let answer = index.find_matches(query).await.expect("an answer").into_inner();
    let [found] = &answer.matches[..] else { panic!("{answer:?}") };
    assert_eq!((found.state(), found.connected), (pb::WorkerState::CatchingUp, false));
    assert!(agent.stop(PATIENCE).await);
}

/// Ranks of one engine, each with a publisher of its own: all that they hold is one worker's.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_ranks_of_an_engine_are_relayed_side_by_side() {
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    let engines = [engine_of(0).await, engine_of(1).await];
    let mut server = harness::server(any, any).await;
    let mut config = config(vec![url(server.addresses.grpc)]);
    config.sources.relays = engines.iter().map(relay).collect();
    config.sources.hub.sources_max = 2;
    let agent = start(config).await;
    let mut random = ChaCha8Rng::seed_from_u64(4);
    for life in 0..2 {
        let mut expected = BTreeMap::new();
        for engine in &engines {
            load(engine, &mut random, REQUESTS).await;
            for (name, copies) in settled(&agent, engine).await.copies {
                *expected.entry(name).or_default() += copies;
            }
        }
        assert_eq!(indexed(&server).await, expected, "life {life}");
        engines[1].restart().await.expect("its ports are free");
    }
    assert!(agent.stop(PATIENCE).await);
    for engine in engines {
        engine.stop().await;
    }
    server.stop().await;
}

/// Of an engine that is gone for too long nothing is left.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_engine_that_does_not_come_back_holds_nothing() {
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    let engine = engine().await;
    let mut server = harness::server(any, any).await;
    let mut config = relaying(&engine, &server, INCARNATION);
    config.sources.relays[0].worker_timeout = Duration::from_millis(100);
    let agent = start(config).await;
    load(&engine, &mut ChaCha8Rng::seed_from_u64(1), REQUESTS).await;
    settled(&agent, &engine).await;
    let mut source = agent.hub().watch(engine.endpoint()).expect("a source");
    engine.stop().await;
    let gone = |status: &SourceStatus<Instant>| !status.connected && status.applied.is_none();
    let waited = timeout(PATIENCE, source.wait_for(gone)).await;
    waited.expect("it is noticed").expect("a source");
    assert_eq!(agent.status().held_blocks, 0);
    delivered(&agent, agent.status().head.expect("something was published")).await;
    assert!(indexed(&server).await.is_empty());
    assert!(agent.stop(PATIENCE).await);
    server.stop().await;
}

fn chains(tokens: &[u32], tier: usize) -> BTreeSet<Chain> {
    let mut locals = Vec::new();
    let seed = Namespace::default().seed();
    local_hashes(&tokens_le(tokens), BLOCK_SIZE, seed, &[], &mut locals);
    let locals: Vec<u64> = locals.into_iter().map(|local| local.0).collect();
    (1..=locals.len()).map(|blocks| (0, locals[..blocks].to_vec(), tier)).collect()
}

/// An engine, and a block manager that has some of its blocks and others, under names of its own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sources_that_are_consolidated_are_held_as_long_as_one_of_them_is() {
    const DIRECT: &str = "engine itself";
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    let engine = engine().await;
    let mut server = harness::server(any, any).await;
    let mut indexer = client::connect(server.addresses.grpc).await.expect("a server");
    let itself = (MODEL, DIRECT);
    client::register_engine(&mut indexer, itself, BLOCK_SIZE, &engine).await.expect("a worker");
    let mut config = relaying(&engine, &server, INCARNATION);
    config.source.journal.copy_mode = CopyMode::Set;
    config.sources.hub = HubConfig { sources_max: 2, consolidate: true, ..HubConfig::DEFAULT };
    let agent = start(config).await;
    let manager = KvEventPublisher::open(agent.hub(), "manager", CopyMode::Set, 0);
    let manager = manager.expect("a second source");

    let shared = prompt_tokens(0);
    let own = prompt_tokens(77);
    let names: Vec<BlockName> =
        (0..shared.len() / BLOCK_SIZE).map(|at| BlockName(at as u64)).collect();
    let store = |tokens: &[u32], tier| {
        let content = Content::tokens(tokens);
        let blocks = NewBlocks { parent: None, names: &names, content, tier };
        manager.publish_stored(&blocks).expect("published");
    };
    let mut random = ChaCha8Rng::seed_from_u64(9);
    store(&shared, Tier::Device);
    for life in 0..3 {
        load(&engine, &mut random, REQUESTS).await;
        let last =
            settled(&agent, &engine).await.last_sequence.expect("it has published something");
        let waited = client::wait_until_exact_at(&mut indexer, itself, last, PATIENCE).await;
        waited.expect("the index follows the engine");
        let mut expected = client::dump_chains(&mut indexer, MODEL, DIRECT).await.expect("a dump");
        let of_engine = expected.len();
        expected.extend(chains(&shared, 0));
        let held = client::dump_chains(&mut indexer, MODEL, WORKER).await.expect("a dump");
        assert!(
            of_engine > 100 && held == expected,
            "life {life}: {} of {}",
            held.len(),
            expected.len()
        );
        engine.restart().await.expect("its ports are free");
    }
    // The same names with other content, in another tier, are copies of what they mean; then the manager ends.
    load(&engine, &mut random, 1).await;
    let truth = settled(&agent, &engine).await;
    store(&own, Tier::Host);
    let head = agent.status().head.expect("something was published");
    delivered(&agent, head).await;
    let held = client::dump_chains(&mut indexer, MODEL, WORKER).await.expect("a dump");
    assert!(held.is_superset(&chains(&shared, 1)));
    assert!(held.is_disjoint(&chains(&own, 1)));
    manager.shutdown();
    delivered(&agent, agent.status().head.expect("something was published")).await;
    let held = client::dump_chains(&mut indexer, MODEL, WORKER).await.expect("a dump");
    assert_eq!(held.len(), truth.copies.len());
    assert_eq!(agent.hub().reports().len(), 1);
    assert!(agent.stop(PATIENCE).await);
    engine.stop().await;
    server.stop().await;
}

/// Where the engine's connector never removes, time does, and every index is told.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn blocks_of_a_medium_with_a_time_to_live_leave_the_index() {
    const SEED: u64 = 6;
    println!("seed {SEED}");
    let mut random = ChaCha8Rng::seed_from_u64(SEED);
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    let engine = MockEngine::start(engine_config().today()).await.expect("an engine");
    let mut server = harness::server(any, any).await;
    let mut config = relaying(&engine, &server, INCARNATION);
    config.sources.relays[0].medium_ttls = vec![("GPU".to_owned(), Duration::from_secs(5))];
    let agent = start(config).await;
    load(&engine, &mut random, REQUESTS).await;
    let truth = settled(&agent, &engine).await;
    assert_eq!(indexed(&server).await, truth.copies);
    let all_gone = async {
        while !indexed(&server).await.is_empty() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(PATIENCE, all_gone).await.expect("their time is over");
    let counts = agent.hub().reports().remove(0).counts;
    let blocks = truth.copies.len() as u64;
    assert!((blocks..2 * blocks).contains(&counts.expired), "{} of {blocks}", counts.expired);
    assert_eq!(settled(&agent, &engine).await.copies, truth.copies, "the engine still holds them");
    assert!(agent.stop(PATIENCE).await);
    engine.stop().await;
    server.stop().await;
}
