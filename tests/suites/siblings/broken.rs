//! Copies that break off.

use crate::gate::Gate;
use crate::harness::{
    BLOCK_SIZE, MODEL, PATIENCE, beside, degraded, engine, equal, last, metric, published, serve,
};
use anyhow::{Context, Result, ensure};
use kvasir_proto::pb;
use kvasir_sim::client;
use kvasir_sim::demo::metrics;
use kvasir_sim::engine::{EngineConfig, MockEngine};
use kvasir_sim::server::Server;
use kvasir_sim::workload::Conversations;
use rustix::process::Signal;
use std::sync::Arc;
use tokio::time::timeout;

const SEED: u64 = 3;
const BUFFER_BATCHES: usize = 50;

/// An elder that is exact, and an engine that replays next to nothing.
async fn elder() -> Result<(Server, Arc<MockEngine>)> {
    println!("seed {SEED}");
    let config = EngineConfig {
        capacity_blocks: 4_096,
        buffer_batches: BUFFER_BATCHES,
        ..EngineConfig::default()
    };
    let engine = engine(config).await?;
    let elder = Server::start_anywhere().await?;
    let mut asked = client::connect(elder.addresses.grpc).await?;
    client::register_engine(&mut asked, (MODEL, "w"), BLOCK_SIZE, &engine).await?;
    let mut conversations = Conversations::new(SEED);
    while published(&engine).await? < 10 * BUFFER_BATCHES as u64 {
        serve(&engine, &mut conversations, 1).await?;
        equal_enough(&mut asked, &engine).await?;
    }
    equal(&mut asked, "w", &engine).await?;
    Ok((elder, engine))
}

/// Waits until the elder has all that was published: its buffer would not bring it back.
async fn equal_enough(asked: &mut client::Indexer, engine: &MockEngine) -> Result<()> {
    let last = last(engine).await?;
    let there = |source: &pb::SourceInfo| client::is_exact_at(source, last);
    client::wait_for_sources(asked, (MODEL, "w"), "up to date", PATIENCE, there).await
}

/// A server whose copy has begun and does not go on.
async fn held(gate: &mut Gate) -> Result<Server> {
    let younger = beside(&[gate.address]).await?;
    timeout(PATIENCE, gate.held.wait_for(|held| *held > 0)).await??;
    Ok(younger)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sibling_that_is_killed_leaves_a_server_that_serves_and_heals() -> Result<()> {
    let (mut elder, engine) = elder().await?;
    let mut gate = Gate::before(elder.addresses.grpc, 16_384).await;
    let mut younger = held(&mut gate).await?;
    let (status, text) = metrics::get(younger.addresses.http, "/readyz").await?;
    ensure!(status == 503 && text.contains("copying from a sibling: 0 of 1 workers"), "{text}");
    // It answers already, and claims nothing.
    let mut client = client::connect(younger.addresses.grpc).await?;
    let known = client::find_worker(&mut client, MODEL, "w").await?.context("it is known")?;
    let states: Vec<_> = known.sources.iter().map(pb::SourceInfo::state).collect();
    ensure!(states == [pb::WorkerState::CatchingUp], "{known:?}");
    elder.kill().await;
    metrics::ready(younger.addresses.http).await?;
    degraded(&mut client, "w", &engine).await?;
    ensure!(metric(&younger, "sibling_copy_failures_total", "").await? == 1.0, "it is counted");
    // The engine begins anew, with an empty cache.
    ensure!(engine.reset().await?, "it is idle");
    serve(&engine, &mut Conversations::new(SEED + 1), 20).await?;
    equal(&mut client, "w", &engine).await?;
    younger.stop().await;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_copy_under_way_does_not_hold_up_stops_and_removals() -> Result<()> {
    let (mut elder, _engine) = elder().await?;
    let mut gate = Gate::before(elder.addresses.grpc, 16_384).await;
    let mut stopped = held(&mut gate).await?;
    stopped.signal(Signal::TERM)?;
    let end = timeout(PATIENCE, stopped.exited()).await?.to_string();
    ensure!(end.contains("exit status: 0"), "{end}");

    let mut gate = Gate::before(elder.addresses.grpc, 16_384).await;
    let mut removed = held(&mut gate).await?;
    let mut client = client::connect(removed.addresses.grpc).await?;
    let request = pb::RemoveWorkerRequest {
        worker_id: "w".to_owned(),
        model: MODEL.to_owned(),
        ..Default::default()
    };
    timeout(PATIENCE, client.remove_worker(request)).await??;
    metrics::ready(removed.addresses.http).await?;
    ensure!(client::find_worker(&mut client, MODEL, "w").await?.is_none(), "it is gone");
    for server in [&mut elder, &mut removed] {
        server.stop().await;
    }
    Ok(())
}
