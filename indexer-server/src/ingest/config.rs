use super::ShardConfig;
use kvasir_proto::types::LossPolicy;
use std::time::Duration;

/// Configuration of ingest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IngestConfig {
    /// Loss policy of workers whose registration has none.
    pub loss_policy: LossPolicy,
    /// How long suspect blocks stay under [`LossPolicy::Keep`].
    pub degraded_ttl: Duration,
    /// How long a source may be disconnected before its blocks are dropped.
    pub worker_timeout: Duration,
    /// How long a source of a pool may be disconnected before it is removed. The pool's other sources keep the blocks.
    pub pool_source_timeout: Duration,
    /// Time between two probes of an engine's replay socket.
    pub probe_interval: Duration,
    /// Maximum number of concurrent replays, over all engines.
    pub replay_concurrency: usize,
    /// Maximum number of concurrent reads from workers' local indexers.
    pub dump_concurrency: usize,
    /// Shard of this server. `None` if the server has all workers.
    pub shard: Option<ShardConfig>,
}
