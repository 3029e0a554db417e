//! The choice of a worker for a request: by the router of `router-client`.

use anyhow::{Context, Result};
use kvasir_proto::types::{WorkerId, WorkerKey};
use router_client::route::Mode;
use router_client::router::{Index, Router, RouterConfig, RouterWorker};
use router_client::{ClientConfig, IndexerClient};
use serde::Serialize;
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::time::Duration;

/// Weight of overlap against load: the mock engines decode in no time, so blocks in use slow nobody down.
const OVERLAP_SCORE_WEIGHT: f64 = 16.0;
/// Longest wait for an answer of the index: the demo shows what the index is worth, not what a router does without it.
const INDEX_DEADLINE: Duration = Duration::from_secs(5);

/// How workers are chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Policy {
    /// By overlap and load.
    FindMatches,
    /// In turn.
    RoundRobin,
}

impl Policy {
    /// The name in the output.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::FindMatches => "FindMatches",
            Self::RoundRobin => "round-robin",
        }
    }

    /// The prefix of its workers' ids.
    #[must_use]
    pub fn worker_prefix(self) -> &'static str {
        match self {
            Self::FindMatches => "kv",
            Self::RoundRobin => "rr",
        }
    }
}

/// A router over workers with these ids that follows a policy.
///
/// # Errors
/// If the server's address, the block size or an id cannot be used.
pub fn router<'a>(
    policy: Policy,
    server: SocketAddr,
    block_size: usize,
    worker_ids: impl IntoIterator<Item = &'a str>,
) -> Result<Router> {
    let block_size = u32::try_from(block_size).ok().and_then(NonZeroU32::new);
    let mut config = RouterConfig::new(block_size.context("the block size is 0, or too large")?);
    let index = match policy {
        Policy::FindMatches => {
            config.select.cost.overlap_score_weight = OVERLAP_SCORE_WEIGHT;
            let config = ClientConfig { deadline: INDEX_DEADLINE, ..ClientConfig::default() };
            Index::One(IndexerClient::connect(&server.to_string(), config)?)
        }
        Policy::RoundRobin => {
            config.select.mode = Mode::RoundRobin;
            Index::None
        }
    };
    let router = Router::new(config, index)?;
    let worker = |id| Ok(RouterWorker::new(WorkerKey { worker: WorkerId::new(id)?, rank: 0 }));
    let workers = worker_ids.into_iter().map(worker).collect::<Result<Vec<_>>>()?;
    router.set_workers(workers);
    Ok(router)
}
