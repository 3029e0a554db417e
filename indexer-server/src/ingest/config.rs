use super::ShardConfig;
use kvasir_proto::convert::LossPolicy;
use std::time::Duration;

/// Configuration of the ingest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IngestConfig {
    /// What a loss does to a worker whose registration does not say.
    pub loss_policy: LossPolicy,
    /// How long suspect blocks are kept under [`LossPolicy::Keep`].
    pub degraded_ttl: Duration,
    /// How long a source may be disconnected before what it stored is dropped.
    pub worker_timeout: Duration,
    /// Time between two probes of an engine's replay socket.
    pub probe_interval: Duration,
    /// Most replays at a time, over all engines.
    pub replay_concurrency: usize,
    /// Most requests to workers' local indexers at a time, dumps and ranges together.
    pub dump_concurrency: usize,
    /// Which shard this server is; none if it has all workers.
    pub shard: Option<ShardConfig>,
}
