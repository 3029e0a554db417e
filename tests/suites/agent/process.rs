//! The agent as a process: an engine's publisher in, an index told, whatever is killed.

use crate::harness::{MODEL, PATIENCE, WORKER, url};
use crate::relay::{engine, load};
use anyhow::{Context, Result};
use kvasir_sim::client::{self, Indexer};
use kvasir_sim::engine::MockEngine;
use kvasir_sim::server::{Addresses, Server};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::time::{sleep, timeout};

const REQUESTS: u64 = 30;
const SEED: u64 = 11;
/// How often the index is looked at.
const LOOK: Duration = Duration::from_millis(20);

async fn agent(engine: &MockEngine, index: SocketAddr) -> Result<Server> {
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    agent_at(Addresses { grpc: any, http: any }, engine, index, &[]).await
}

/// An agent beside an engine, with further flags.
pub async fn agent_at(
    addresses: Addresses,
    engine: &MockEngine,
    index: SocketAddr,
    flags: &[&str],
) -> Result<Server> {
    let source = format!("endpoint={},replay={}", engine.endpoint(), engine.replay_endpoint());
    let block_size = crate::engine::BLOCK_SIZE.to_string();
    let indexers = url(index);
    let few = [
        "--worker-id",
        WORKER,
        "--model",
        MODEL,
        "--block-size",
        &block_size,
        "--engine",
        "vllm",
        "--role",
        "prefill",
        "--label",
        "zone=a",
        "--source",
        &source,
        "--indexers",
        &indexers,
        "--lease",
        "6s",
    ];
    Server::agent_at(addresses, &[&few, flags].concat()).await
}

/// Waits until the index holds what the engine does.
pub async fn equal(server: &Server, engine: &MockEngine) -> Result<()> {
    let truth = engine.truth().await?;
    assert!(truth.copies.len() > 100, "{} blocks", truth.copies.len());
    let same = async {
        let mut index = client::connect(server.addresses.grpc).await?;
        loop {
            let known = client::find_worker(&mut index, MODEL, WORKER).await?;
            let has_content = known.is_some_and(|worker| !worker.ranks.is_empty());
            // A dump is cut off where the worker is cleared meanwhile.
            let held = client::dump_device_copies(&mut index, MODEL, WORKER).await;
            if has_content && held.is_ok_and(|held| held == truth.copies) {
                return Ok(());
            }
            sleep(LOOK).await;
        }
    };
    timeout(PATIENCE, same).await.context("the index never holds what the engine does")?
}

async fn registered(
    index: &mut Indexer,
) -> Result<Option<kvasir_proto::pb::RegisterWorkerRequest>> {
    let worker = client::find_worker(index, MODEL, WORKER).await?;
    Ok(worker.and_then(|worker| worker.registration))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_beside_its_engine_tells_an_index_whatever_is_killed() -> Result<()> {
    println!("seed {SEED}");
    let mut random = ChaCha8Rng::seed_from_u64(SEED);
    let engine = engine().await;
    let mut server = Server::start_anywhere().await?;
    let mut first = agent(&engine, server.addresses.grpc).await?;
    load(&engine, &mut random, REQUESTS).await;
    equal(&server, &engine).await?;
    let mut index = client::connect(server.addresses.grpc).await?;
    let registration = registered(&mut index).await?.context("it registers its worker")?;
    let profile = registration.profile.context("what routers want to know")?;
    assert_eq!((profile.role, profile.labels.len(), registration.lease_ms), (1, 1, 6_000));
    assert_eq!(registration.local_indexer_endpoint, url(first.addresses.grpc));

    // Another port, the same worker: it takes the place of the one that was killed.
    first.kill().await;
    load(&engine, &mut random, REQUESTS).await;
    let mut second = agent(&engine, server.addresses.grpc).await?;
    equal(&server, &engine).await?;
    let registration = registered(&mut index).await?.context("it registers its worker")?;
    assert_eq!(registration.local_indexer_endpoint, url(second.addresses.grpc));

    let addresses = server.addresses;
    server.kill().await;
    load(&engine, &mut random, REQUESTS).await;
    let mut server = Server::start(addresses.grpc, addresses.http).await?;
    equal(&server, &engine).await?;

    engine.restart().await?;
    load(&engine, &mut random, 2 * REQUESTS).await;
    equal(&server, &engine).await?;

    // It goes in good order, and its worker with it.
    second.stop().await;
    let mut index = client::connect(server.addresses.grpc).await?;
    assert!(registered(&mut index).await?.is_none(), "the worker is removed");
    engine.stop().await;
    server.stop().await;
    Ok(())
}
