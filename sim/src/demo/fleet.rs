//! The engines of one pass: starts and registers them, waits for the index, and compares them with dumps.

use super::route::{Policy, router};
use super::{Args, MODEL};
use crate::client;
use crate::client::Indexer;
use crate::engine::{EngineConfig, MockEngine, Truth};
use anyhow::{Context, Result, bail};
use kvasir_proto::pb;
use kvasir_proto::types::WorkerId;
use router_client::router::Router;
use serde::Serialize;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::runtime::{Builder, Runtime};
use tokio::time::Instant;

/// Timeout for the server to connect to an engine.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(30);
/// Timeout for the server to apply an engine's published events.
const APPLY_TIMEOUT: Duration = Duration::from_secs(120);
/// Threads that the engines of a fleet share.
const ENGINE_THREADS: usize = 2;
/// Seed of the engines' block names. As by vLLM's default, all engines give equal blocks equal names.
const NAME_SEED: u64 = 0x5eed;

/// One engine and its worker id.
#[derive(Debug)]
pub struct Engine {
    /// Worker id of the engine.
    pub worker_id: String,
    /// The engine.
    pub mock: MockEngine,
}

/// The engines of one pass.
#[derive(Debug)]
pub struct Fleet {
    /// Engines by number.
    pub engines: Vec<Engine>,
    runtime: EngineRuntime,
}

/// Separate threads for engines, so that their work does not delay queries to the server, whose latency is measured.
#[derive(Debug)]
struct EngineRuntime(Option<Runtime>);

/// Result of comparing one engine with the index.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Verdict {
    /// The worker.
    pub worker_id: String,
    /// Number of blocks in the engine's cache.
    pub blocks: u64,
    /// Number of physical copies of these blocks.
    pub copies: u64,
    /// Number of the engine's last batch.
    pub last_sequence: Option<u64>,
    /// Blocks of the engine that are missing in the index.
    pub missing: u64,
    /// Blocks in the index that the engine does not have.
    pub phantom: u64,
    /// Blocks with different numbers of copies in engine and index.
    pub miscounted: u64,
}

// === impl Fleet ===

impl Fleet {
    /// Starts engines, registers them and waits until the server has connected to each.
    ///
    /// # Errors
    /// If an engine does not start, or the server rejects it or does not reach it.
    pub async fn start(args: &Args, policy: Policy, client: &mut Indexer) -> Result<Self> {
        let runtime = EngineRuntime::new()?;
        let mut engines = Vec::new();
        for number in 0..args.engines {
            let mock = runtime.start(EngineConfig {
                block_size: args.block_size,
                capacity_blocks: args.capacity_blocks,
                sliding_window: args.sliding_window,
                name_seed: NAME_SEED,
                ..EngineConfig::default()
            });
            let mock = mock.await.context("start an engine")?;
            let worker_id = format!("{}-{number}", policy.worker_prefix());
            client::register_engine(client, (MODEL, &worker_id), args.block_size, &mock).await?;
            engines.push(Engine { worker_id, mock });
        }
        for engine in &engines {
            let worker = (MODEL, engine.worker_id.as_str());
            let connected = |source: &pb::SourceInfo| source.connected;
            client::wait_for_sources(client, worker, "connected", CONNECT_TIMEOUT, connected)
                .await?;
        }
        Ok(Self { engines, runtime })
    }

    /// A router over these engines that follows a policy.
    ///
    /// # Errors
    /// If the server's address or the block size is invalid.
    pub fn router(&self, args: &Args, policy: Policy, server: SocketAddr) -> Result<Router> {
        let ids = self.engines.iter().map(|engine| engine.worker_id.as_str());
        router(policy, server, args.block_size, ids)
    }

    /// The engine of a worker.
    #[must_use]
    pub fn engine(&self, worker: &WorkerId) -> Option<&Engine> {
        self.engines.iter().find(|engine| engine.worker_id == worker.as_str())
    }

    /// Waits until the index is exact at each engine's last batch. Returns the duration of the wait.
    ///
    /// # Errors
    /// If it does not become exact in time.
    pub async fn wait_until_applied(&self, client: &mut Indexer) -> Result<Duration> {
        let start = Instant::now();
        for engine in &self.engines {
            // An engine without a batch needs no wait.
            let Some(last) = engine.mock.truth().await?.last_sequence else {
                continue;
            };
            let worker = (MODEL, engine.worker_id.as_str());
            let what = format!("exact at batch {last}");
            let settled = |source: &pb::SourceInfo| {
                client::is_exact_at(source, last) || client::is_partial_at(source, last)
            };
            client::wait_for_sources(client, worker, &what, APPLY_TIMEOUT, settled).await?;
            let info = client::find_worker(client, MODEL, &engine.worker_id).await?;
            // A worker with missing blocks stays so: the demo never clears an engine.
            if let Some(info) = info.filter(|info| info.sources.iter().any(client::is_partial)) {
                let shed: u64 = info.ranks.iter().map(|rank| rank.shed_blocks).sum();
                bail!(
                    "{} is PARTIAL and will not be {what}: blocks were refused, or shed ({shed}) for \
                     max-index-bytes: unset KVASIR_MAX_INDEX_BYTES, or give it more",
                    engine.worker_id
                );
            }
        }
        Ok(start.elapsed())
    }

    /// Compares every engine with the index's dump of its blocks.
    ///
    /// # Errors
    /// If a dump fails.
    pub async fn verify(&self, client: &mut Indexer) -> Result<Vec<Verdict>> {
        let mut verdicts = Vec::new();
        for engine in &self.engines {
            let truth = engine.mock.truth().await?;
            let dumped = client::dump_device_copies(client, MODEL, &engine.worker_id).await?;
            verdicts.push(Verdict::compare(&engine.worker_id, &truth, &dumped));
        }
        Ok(verdicts)
    }

    /// Stops all engines.
    pub async fn stop(self) {
        for engine in self.engines {
            engine.mock.stop().await;
        }
        drop(self.runtime);
    }
}

// === impl EngineRuntime ===

impl EngineRuntime {
    fn new() -> Result<Self> {
        let mut builder = Builder::new_multi_thread();
        builder.worker_threads(ENGINE_THREADS).thread_name("engine").enable_all();
        Ok(Self(Some(builder.build().context("start threads for engines")?)))
    }

    /// Starts an engine on these threads.
    async fn start(&self, config: EngineConfig) -> Result<MockEngine> {
        let runtime = self.0.as_ref().context("the threads are there until they are dropped")?;
        Ok(runtime.spawn(MockEngine::start(config)).await??)
    }
}

impl Drop for EngineRuntime {
    fn drop(&mut self) {
        // Asynchronous code may drop this, where blocking on threads is not allowed.
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

// === impl Verdict ===

impl Verdict {
    /// Compares an engine's cache with a dump.
    #[must_use]
    pub fn compare(worker_id: &str, truth: &Truth, dumped: &BTreeMap<u64, u32>) -> Self {
        let count = |number: usize| number as u64;
        let shared = truth
            .copies
            .iter()
            .filter_map(|(name, copies)| dumped.get(name).map(|dumped| (*copies, *dumped)));
        Self {
            worker_id: worker_id.to_owned(),
            blocks: count(truth.copies.len()),
            copies: truth.copies.values().map(|&copies| u64::from(copies)).sum(),
            last_sequence: truth.last_sequence,
            missing: count(truth.copies.keys().filter(|name| !dumped.contains_key(name)).count()),
            phantom: count(dumped.keys().filter(|name| !truth.copies.contains_key(name)).count()),
            miscounted: count(shared.filter(|(copies, dumped)| copies != dumped).count()),
        }
    }

    /// True if the index has exactly the engine's blocks.
    #[must_use]
    pub fn is_equal(&self) -> bool {
        self.missing == 0 && self.phantom == 0 && self.miscounted == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_difference_is_counted() {
        let truth =
            Truth { copies: BTreeMap::from([(1, 1), (2, 2), (3, 1)]), last_sequence: Some(4) };
        let dumped = BTreeMap::from([(1, 1), (2, 1), (9, 1)]);
        let verdict = Verdict::compare("a", &truth, &dumped);
        assert_eq!((verdict.missing, verdict.phantom, verdict.miscounted), (1, 1, 1));
        assert_eq!((verdict.blocks, verdict.copies), (3, 4));
        assert!(!verdict.is_equal());
        assert!(Verdict::compare("a", &truth, &truth.copies).is_equal());
    }
}
