//! Engines under load, and servers beside one another.

use anyhow::{Context, Result, bail, ensure};
use kvasir_proto::pb;
use kvasir_sim::client::{self, Indexer};
use kvasir_sim::demo::fleet::Verdict;
use kvasir_sim::demo::metrics;
use kvasir_sim::engine::{EngineConfig, EngineError, MockEngine, Prompt};
use kvasir_sim::server::Server;
use kvasir_sim::workload::Conversations;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

pub const MODEL: &str = "m";
pub const BLOCK_SIZE: usize = 16;
/// Nothing in these tests takes nearly as long.
pub const PATIENCE: Duration = Duration::from_secs(60);
/// How often a condition is looked at that nothing announces.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

pub fn anywhere() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 0))
}

pub fn url(address: SocketAddr) -> String {
    format!("http://{address}")
}

/// A server that is told of siblings.
pub async fn beside(siblings: &[SocketAddr]) -> Result<Server> {
    let urls: Vec<_> = siblings.iter().copied().map(url).collect();
    Server::start_with(anywhere(), anywhere(), &["--siblings", &urls.join(",")]).await
}

pub async fn metric(server: &Server, name: &str, labels: &str) -> Result<f64> {
    metrics::sum(server.addresses.http, name, labels).await
}

/// An engine whose replay buffer reaches back a little only.
pub async fn engine(config: EngineConfig) -> Result<Arc<MockEngine>> {
    Ok(Arc::new(MockEngine::start(EngineConfig { block_size: BLOCK_SIZE, ..config }).await?))
}

/// Has an engine serve some more conversations.
pub async fn serve(
    engine: &MockEngine,
    conversations: &mut Conversations,
    requests: usize,
) -> Result<()> {
    for _ in 0..requests {
        let turn = conversations.next_turn();
        let request = conversations.request(&turn);
        let prompt = Prompt {
            tokens: request.prompt.into_iter().take(8 * 1_024).collect(),
            answer: request.answer.into_iter().take(64).collect(),
        };
        match engine.run(prompt).await {
            // It was restarted meanwhile.
            Ok(_) | Err(EngineError::Gone) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// Has an engine serve until it is told to stop, a request now and then.
pub async fn serve_on(
    engine: Arc<MockEngine>,
    mut conversations: Conversations,
    stop: CancellationToken,
) -> Result<()> {
    const PACE: Duration = Duration::from_millis(10);
    while !stop.is_cancelled() {
        serve(&engine, &mut conversations, 1).await?;
        sleep(PACE).await;
    }
    Ok(())
}

/// Batches that an engine has published.
pub async fn published(engine: &MockEngine) -> Result<u64> {
    Ok(engine.truth().await?.last_sequence.map_or(0, |last| last + 1))
}

/// Number of an engine's last batch.
pub async fn last(engine: &MockEngine) -> Result<u64> {
    engine.truth().await?.last_sequence.context("the engine has published")
}

/// Waits until a server is exact at an idle engine's last batch, and compares what both hold.
pub async fn equal(client: &mut Indexer, worker_id: &str, engine: &MockEngine) -> Result<()> {
    let last = last(engine).await?;
    let exact = |source: &pb::SourceInfo| client::is_exact_at(source, last);
    let what = format!("exact at batch {last}");
    client::wait_for_sources(client, (MODEL, worker_id), &what, PATIENCE, exact).await?;
    let dumped = client::dump_device_copies(client, MODEL, worker_id).await?;
    let verdict = Verdict::compare(worker_id, &engine.truth().await?, &dumped);
    ensure!(verdict.is_equal() && verdict.blocks > 100, "{verdict:?}");
    Ok(())
}

/// Waits until a server has an idle engine's last batch, and says that it is not all.
pub async fn degraded(client: &mut Indexer, worker_id: &str, engine: &MockEngine) -> Result<()> {
    let last = last(engine).await?;
    let deadline = Instant::now() + PATIENCE;
    loop {
        let worker = client::find_worker(client, MODEL, worker_id).await?.context("it is known")?;
        ensure!(!worker.sources.iter().any(is_exact), "{worker:?}");
        let is_degraded = |at: &pb::SourceInfo| at.state == pb::WorkerState::Degraded as i32;
        let has_last =
            |at: &pb::SourceInfo| at.applied.as_ref().map(|at| at.sequence) == Some(last);
        if worker.sources.iter().any(|at| is_degraded(at) && has_last(at)) {
            return Ok(());
        }
        if Instant::now() >= deadline {
            bail!("{worker_id} is not degraded at {last}: {worker:?}");
        }
        sleep(POLL_INTERVAL).await;
    }
}

pub fn is_exact(source: &pb::SourceInfo) -> bool {
    source.state == pb::WorkerState::Exact as i32
}
