//! Bare engines: what they cannot replay any more comes from the sibling, and is verified with them.

use crate::gate::Gate;
use crate::harness::{BLOCK_SIZE, anywhere};
use crate::harness::{
    MODEL, PATIENCE, beside, degraded, engine, equal, metric, published, serve, serve_on, url,
};
use anyhow::{Context, Result, ensure};
use kvasir_sim::client;
use kvasir_sim::demo::metrics;
use kvasir_sim::engine::{EngineConfig, HashForm, MockEngine, WireForm};
use kvasir_sim::server::Server;
use kvasir_sim::workload::Conversations;
use std::sync::Arc;
use std::time::Duration;
use tempfile::TempDir;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

const ENGINES: usize = 3;
const SEED: u64 = 9;
/// Batches that an engine can replay: more than it publishes during a copy, and a small part of all.
const BUFFER_BATCHES: usize = 400;

fn worker_id(number: usize) -> String {
    format!("engine-{number}")
}

async fn fleet() -> Result<Vec<Arc<MockEngine>>> {
    let mut engines = Vec::new();
    for number in 0..ENGINES {
        let config = EngineConfig {
            capacity_blocks: 2_048,
            sliding_window: (number == 1).then_some(64),
            hashes: if number == 2 { HashForm::Integer } else { HashForm::Bytes },
            form: if number == 2 { WireForm::Array } else { WireForm::Map },
            buffer_batches: BUFFER_BATCHES,
            ..EngineConfig::default()
        };
        engines.push(engine(config).await?);
    }
    Ok(engines)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_copy_under_load_is_what_the_engines_hold() -> Result<()> {
    println!("seed {SEED}");
    let engines = fleet().await?;
    let mut elder = Server::start_anywhere().await?;
    let mut asked = client::connect(elder.addresses.grpc).await?;
    for (number, engine) in engines.iter().enumerate() {
        let id = worker_id(number);
        client::register_engine(&mut asked, (MODEL, &id), BLOCK_SIZE, engine).await?;
    }
    // Long past what the buffers keep, and the elder keeps up.
    let stop = CancellationToken::new();
    let mut load = JoinSet::new();
    for (number, engine) in engines.iter().enumerate() {
        let mut conversations = Conversations::new(SEED + number as u64);
        while published(engine).await? < 3 * BUFFER_BATCHES as u64 {
            serve(engine, &mut conversations, 20).await?;
            equal(&mut asked, &worker_id(number), engine).await?;
        }
        load.spawn(serve_on(Arc::clone(engine), conversations, stop.clone()));
    }
    let folder = TempDir::new()?;
    let checkpoints = ["--checkpoint-dir", folder.path().to_str().context("a path in UTF-8")?];
    let siblings = url(elder.addresses.grpc);
    let flags = [&checkpoints[..], &["--siblings", &siblings]].concat();
    let mut younger = Server::start_with(anywhere(), anywhere(), &flags).await?;
    metrics::ready(younger.addresses.http).await?;
    stop.cancel();
    while let Some(ended) = load.join_next().await {
        ended??;
    }
    let mut copied = client::connect(younger.addresses.grpc).await?;
    for (number, engine) in engines.iter().enumerate() {
        equal(&mut copied, &worker_id(number), engine).await?;
        equal(&mut asked, &worker_id(number), engine).await?;
    }
    let workers = metric(&younger, "sibling_workers_copied_total", "").await?;
    let blocks = metric(&younger, "sibling_blocks_copied_total", "").await?;
    ensure!(workers == ENGINES as f64 && blocks > 1_000.0, "{workers} workers, {blocks} blocks");

    // From now on its own checkpoint has it.
    younger.stop().await;
    let mut younger = Server::start_with(anywhere(), anywhere(), &checkpoints).await?;
    metrics::ready(younger.addresses.http).await?;
    let mut kept = client::connect(younger.addresses.grpc).await?;
    for (number, engine) in engines.iter().enumerate() {
        equal(&mut kept, &worker_id(number), engine).await?;
    }

    // One that copies nothing cannot have what the engines do not replay, and says so.
    let mut lone = Server::start_with(anywhere(), anywhere(), &[]).await?;
    let mut alone = client::connect(lone.addresses.grpc).await?;
    for (number, engine) in engines.iter().enumerate() {
        let id = worker_id(number);
        client::register_engine(&mut alone, (MODEL, &id), BLOCK_SIZE, engine).await?;
        degraded(&mut alone, &id, engine).await?;
    }
    for server in [&mut elder, &mut younger, &mut lone] {
        server.stop().await;
    }
    Ok(())
}

/// What comes is of a life that is over by the time it is there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_an_incarnation_that_has_ended_meanwhile_nothing_stays() -> Result<()> {
    let config = EngineConfig { capacity_blocks: 700, ..EngineConfig::default() };
    let engine = engine(config).await?;
    let mut elder = Server::start_anywhere().await?;
    let mut asked = client::connect(elder.addresses.grpc).await?;
    client::register_engine(&mut asked, (MODEL, "w"), BLOCK_SIZE, &engine).await?;
    let mut conversations = Conversations::new(SEED);
    serve(&engine, &mut conversations, 60).await?;
    equal(&mut asked, "w", &engine).await?;
    let before = engine.truth().await?;

    let mut gate = Gate::before(elder.addresses.grpc, 4_096).await;
    let mut younger = beside(&[gate.address]).await?;
    timeout(PATIENCE, gate.held.wait_for(|held| *held > 4_096)).await??;
    // The elder has said all: nothing can cut this dump off any more.
    let deadline = Instant::now() + PATIENCE;
    while metric(&elder, "grpc_streams", "").await? > 0.0 {
        ensure!(Instant::now() < deadline, "the elder's dump does not end");
        sleep(Duration::from_millis(20)).await;
    }
    engine.restart().await?;
    let mut conversations = Conversations::new(SEED + 1);
    serve(&engine, &mut conversations, 60).await?;
    let now = engine.truth().await?;
    let gone = before.copies.keys().filter(|name| !now.copies.contains_key(name)).count();
    ensure!(gone > 100, "the lives hold the same: {gone}");
    gate.open();
    metrics::ready(younger.addresses.http).await?;
    let copied = metric(&younger, "sibling_blocks_copied_total", "").await?;
    ensure!(copied == before.copies.len() as f64, "{copied} of {}", before.copies.len());
    let mut client = client::connect(younger.addresses.grpc).await?;
    equal(&mut client, "w", &engine).await?;
    for server in [&mut elder, &mut younger] {
        server.stop().await;
    }
    Ok(())
}
