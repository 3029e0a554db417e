use super::ShardConfig;
use kvasir_proto::types::LossPolicy;
use std::time::Duration;

/// Configuration of the ingest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IngestConfig {
    /// Loss policy of workers whose registration names none.
    pub loss_policy: LossPolicy,
    /// How long suspect blocks stay under [`LossPolicy::Keep`].
    pub degraded_ttl: Duration,
    /// How long a source may be disconnected before what it stored is dropped.
    pub worker_timeout: Duration,
    /// How long a source of a pool may be away before its blocks are left to the pool's other sources.
    pub pool_source_timeout: Duration,
    /// Time between two probes of an engine's replay socket.
    pub probe_interval: Duration,
    /// Limit of concurrent replays, over all engines.
    pub replay_concurrency: usize,
    /// Limit of concurrent reads from workers' local indexers.
    pub dump_concurrency: usize,
    /// Which shard this server is; none if it has all workers.
    pub shard: Option<ShardConfig>,
}
