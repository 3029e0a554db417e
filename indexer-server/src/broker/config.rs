use kvasir_process::nats::NatsServers;
use kvasir_proto::broker::Delivery;
use std::time::Duration;

/// Where events come from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BrokerConfig {
    /// Where to connect.
    pub servers: NatsServers,
    /// How events come.
    pub delivery: Delivery,
    /// The stream that is made where there is none.
    pub stream: StreamConfig,
    /// Messages in the stream after which a snapshot of the index goes to the object store.
    pub snapshot_threshold: u64,
    /// Whether stream, snapshots and the local checkpoint are emptied at start.
    pub reset: bool,
}

/// Bounds of the stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StreamConfig {
    /// How long it retains a batch.
    pub age_max: Duration,
    /// How many bytes it retains.
    pub bytes_max: u64,
}
