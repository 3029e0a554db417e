//! An agent whose journal is on disk, as a process: killed and back, it goes on where its engine lived on, and begins
//! anew where it did not.

use crate::engine::Engine;
use crate::harness::{
    INCARNATION, MODEL, PATIENCE, WORKER, config, delivered, publish, start, url,
};
use crate::process::{agent_at, equal};
use crate::relay::{engine, engine_config, load};
use anyhow::{Context, Result};
use kvasir_proto::types::Incarnation;
use kvasir_sim::client;
use kvasir_sim::demo::metrics;
use kvasir_sim::engine::{EngineConfig, MockEngine};
use kvasir_sim::server::{Addresses, Server};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;
use tokio::join;
use tokio::time::{sleep, timeout};

const SEEDS: u64 = 2;
const ROUNDS: u32 = 4;
const REQUESTS: u64 = 40;
const LOOK: Duration = Duration::from_millis(20);

fn anywhere() -> Addresses {
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    Addresses { grpc: any, http: any }
}

/// A small journal, so that images come now and then.
async fn agent(
    addresses: Addresses,
    engine: &MockEngine,
    index: &Server,
    folder: &Path,
) -> Result<Server> {
    let folder = folder.to_str().context("a folder with a name")?;
    let flags = ["--journal-dir", folder, "--journal-bytes", "512KiB"];
    agent_at(addresses, engine, index.addresses.grpc, &flags).await
}

/// A value of a process' `/metrics`: of its name, and with a part of its labels.
pub async fn value(server: &Server, name: &str, label: &str) -> Result<f64> {
    let samples = metrics::fetch(server.addresses.http).await?;
    let found = samples.iter().find(|at| at.name == name && at.labels.contains(label));
    Ok(found.with_context(|| format!("{name} {label} is not shown"))?.value)
}

/// Records of dumps that the index has taken.
async fn dumped(index: &Server) -> Result<f64> {
    value(index, "kvasir_dump_records_total", "").await
}

/// The life that the index knows of the agent.
async fn life(index: &Server) -> Result<Vec<u8>> {
    let mut client = client::connect(index.addresses.grpc).await?;
    let worker = client::find_worker(&mut client, MODEL, WORKER).await?.context("a worker")?;
    let source = worker.sources.first().context("a source")?;
    Ok(source.applied.as_ref().context("a cursor")?.incarnation.to_vec())
}

async fn verdict(agent: &Server, word: &str) -> Result<bool> {
    let label = format!("verdict=\"{word}\"");
    let told = async {
        while value(agent, "kvasir_agent_disk_verdict", "verdict=\"pending\"").await? > 0.0 {
            sleep(LOOK).await;
        }
        Ok(value(agent, "kvasir_agent_disk_verdict", &label).await? > 0.0)
    };
    timeout(PATIENCE, told).await.context("it is never known")?
}

/// Waits until the index holds this and nothing else.
async fn holds(index: &Server, truth: BTreeMap<u64, u32>) -> Result<()> {
    let mut client = client::connect(index.addresses.grpc).await?;
    let same = async {
        // A life that begins cuts a dump off.
        while client::dump_device_copies(&mut client, MODEL, WORKER).await.ok().as_ref()
            != Some(&truth)
        {
            sleep(LOOK).await;
        }
    };
    timeout(PATIENCE, same).await.context("the index never holds what the engine does")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_that_is_killed_goes_on_where_its_engine_lived_on() -> Result<()> {
    for seed in 0..SEEDS {
        println!("seed {seed}");
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let folder = tempfile::tempdir()?;
        let engine = engine().await;
        let mut index = Server::start_anywhere().await?;
        let mut killed = agent(anywhere(), &engine, &index, folder.path()).await?;
        assert!(verdict(&killed, "first").await?);
        load(&engine, &mut random, REQUESTS).await;
        equal(&index, &engine).await?;
        let first = life(&index).await?;
        let before = dumped(&index).await?;
        for round in 0..ROUNDS {
            let mut during = ChaCha8Rng::from_rng(&mut random);
            let pause = Duration::from_millis(random.random_range(0..60));
            let kill = async {
                sleep(pause).await;
                killed.kill().await;
            };
            join!(load(&engine, &mut during, 2 * REQUESTS), kill);
            let addresses = killed.addresses;
            // While it is away, and while it comes back.
            let mut during = ChaCha8Rng::from_rng(&mut random);
            let (back, ()) = join!(
                agent(addresses, &engine, &index, folder.path()),
                load(&engine, &mut during, REQUESTS)
            );
            killed = back?;
            assert_eq!(killed.addresses, addresses, "else it is registered anew");
            load(&engine, &mut random, REQUESTS).await;
            equal(&index, &engine).await?;
            assert!(verdict(&killed, "kept").await?, "seed {seed}, round {round}");
            assert_eq!(life(&index).await?, first, "seed {seed}, round {round}");
            let restored = value(&killed, "kvasir_agent_disk_restored_blocks", "").await?;
            assert!(restored > 100.0, "{restored} blocks");
        }
        assert_eq!(dumped(&index).await?.to_bits(), before.to_bits(), "nothing is fetched again");
        let image_counts = async {
            while value(&killed, "kvasir_agent_disk_image_bytes", "").await? == 0.0 {
                sleep(LOOK).await;
            }
            anyhow::Ok(())
        };
        timeout(PATIENCE, image_counts).await.context("no image counts")??;
        killed.stop().await;
        engine.stop().await;
        index.stop().await;
    }
    Ok(())
}

/// Engines state the kind of a group with what they store, and not with what they remove.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_main_group_is_on_disk_in_every_incarnation_of_the_engine() -> Result<()> {
    const SEED: u64 = 9;
    println!("seed {SEED}");
    let mut random = ChaCha8Rng::seed_from_u64(SEED);
    let folder = tempfile::tempdir()?;
    let config = EngineConfig { sliding_window: Some(64), window_first: true, ..engine_config() };
    let engine = MockEngine::start(config).await?;
    let mut index = Server::start_anywhere().await?;
    let mut agent = agent(anywhere(), &engine, &index, folder.path()).await?;
    for _ in 0..2 {
        load(&engine, &mut random, REQUESTS).await;
        equal(&index, &engine).await?;
        let addresses = agent.addresses;
        agent.kill().await;
        load(&engine, &mut random, REQUESTS).await;
        agent = self::agent(addresses, &engine, &index, folder.path()).await?;
        equal(&index, &engine).await?;
        // The group has the same number afterwards, and is to be stored all the same.
        engine.restart().await?;
    }
    agent.stop().await;
    engine.stop().await;
    index.stop().await;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_incarnation_begins_where_the_engine_is_another() -> Result<()> {
    println!("seed 5");
    let mut random = ChaCha8Rng::seed_from_u64(5);
    let folder = tempfile::tempdir()?;
    let engine = engine().await;
    let mut index = Server::start_anywhere().await?;
    let mut killed = agent(anywhere(), &engine, &index, folder.path()).await?;
    load(&engine, &mut random, REQUESTS).await;
    equal(&index, &engine).await?;
    let mut lives = vec![life(&index).await?];
    for is_index_killed in [false, true] {
        // The engine restarts while nobody looks, or everybody is killed.
        let mut during = ChaCha8Rng::from_rng(&mut random);
        join!(load(&engine, &mut during, REQUESTS), killed.kill());
        engine.restart().await?;
        if is_index_killed {
            let addresses = index.addresses;
            index.kill().await;
            index = Server::start(addresses.grpc, addresses.http).await?;
        }
        // More than it said before, so that numbers do not tell.
        load(&engine, &mut random, 5 * REQUESTS).await;
        killed = agent(killed.addresses, &engine, &index, folder.path()).await?;
        equal(&index, &engine).await?;
        assert!(verdict(&killed, "engine").await?);
        let life = life(&index).await?;
        assert!(!lives.contains(&life), "it was never lived");
        lives.push(life);
        load(&engine, &mut random, REQUESTS).await;
        equal(&index, &engine).await?;
    }
    killed.stop().await;
    engine.stop().await;
    index.stop().await;
    Ok(())
}

/// A publisher on the agent's port goes on where the agent's disk says.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_publisher_goes_on_where_the_agents_disk_says() -> Result<()> {
    println!("seed 6");
    let folder = tempfile::tempdir()?;
    let mut index = Server::start_anywhere().await?;
    let block_size = crate::engine::BLOCK_SIZE.to_string();
    let indexers = url(index.addresses.grpc);
    let folder = folder.path().to_str().context("a folder with a name")?;
    let flags = [
        "--worker-id",
        WORKER,
        "--model",
        MODEL,
        "--block-size",
        &block_size,
        "--engine",
        "vllm",
        "--indexers",
        &indexers,
        "--journal-dir",
        folder,
        "--journal-bytes",
        "512KiB",
    ];
    let mut killed = Server::agent_at(anywhere(), &flags).await?;
    let publisher = start(config(vec![url(killed.addresses.grpc)])).await;
    let mut engine = Engine::new(6);
    let mut random = ChaCha8Rng::seed_from_u64(6);
    let mut first = None;
    for round in 0..ROUNDS {
        let last = publish(&publisher, &mut engine, random.random_range(50..300));
        // Killed somewhere within.
        delivered(&publisher, last - random.random_range(0..40)).await;
        killed.kill().await;
        publish(&publisher, &mut engine, 50);
        killed = Server::agent_at(killed.addresses, &flags).await?;
        let last = publish(&publisher, &mut engine, 50);
        delivered(&publisher, last).await;
        assert!(verdict(&killed, "kept").await?, "round {round}");
        holds(&index, engine.truth()).await.with_context(|| format!("round {round}"))?;
        let life = life(&index).await?;
        assert_eq!(first.get_or_insert_with(|| life.clone()), &life, "round {round}");
    }
    assert_eq!(dumped(&index).await?.to_bits(), 0.0_f64.to_bits());
    // Another agent does not take the folder.
    let refused = Server::agent_at(anywhere(), &flags).await.expect_err("it is in use");
    let refused = format!("{refused:?}");
    assert!(refused.contains("each agent needs a folder of its own"), "{refused}");
    // The engine ends with its publisher; another one is another life.
    killed.kill().await;
    drop(publisher);
    killed = Server::agent_at(killed.addresses, &flags).await?;
    let mut other = config(vec![url(killed.addresses.grpc)]);
    other.source.incarnation = Incarnation(INCARNATION.0 + 1);
    let publisher = start(other).await;
    let mut engine = Engine::new(7);
    let last = publish(&publisher, &mut engine, 100);
    delivered(&publisher, last).await;
    assert!(verdict(&killed, "engine").await?);
    holds(&index, engine.truth()).await.context("the new life")?;
    assert_ne!(Some(life(&index).await?), first);
    assert!(publisher.stop(PATIENCE).await);
    killed.stop().await;
    index.stop().await;
    Ok(())
}
