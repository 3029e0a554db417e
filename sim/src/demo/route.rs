//! Chooses a worker for a request with the router of `router-client`.

use anyhow::{Context, Result};
use kvasir_proto::types::{WorkerId, WorkerKey};
use router_client::route::Mode;
use router_client::router::{Index, Router, RouterConfig, RouterWorker};
use router_client::{ClientConfig, IndexerClient};
use serde::Serialize;
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::time::Duration;

/// Weight of overlap against load. The mock engines decode in no time, so blocks in use do not slow them.
const OVERLAP_SCORE_WEIGHT: f64 = 16.0;
/// Timeout for the index. It is long, because the demo shows the value of the index, not routing without it.
const INDEX_DEADLINE: Duration = Duration::from_secs(5);

/// Routing policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Policy {
    /// Choose by overlap and load.
    FindMatches,
    /// Choose workers in turn.
    RoundRobin,
}

impl Policy {
    /// Name of the policy in the output.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::FindMatches => "FindMatches",
            Self::RoundRobin => "round-robin",
        }
    }

    /// Prefix of the ids of the policy's workers.
    #[must_use]
    pub fn worker_prefix(self) -> &'static str {
        match self {
            Self::FindMatches => "kv",
            Self::RoundRobin => "rr",
        }
    }
}

/// Creates a router over workers with these ids that follows a policy.
///
/// # Errors
/// If the server's address, the block size or an id is invalid.
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
