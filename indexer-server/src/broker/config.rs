use kvasir_process::nats::NatsServers;
use kvasir_proto::broker::Delivery;
use std::time::Duration;

/// Configuration of events over NATS.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BrokerConfig {
    /// Addresses and credentials.
    pub servers: NatsServers,
    /// How events are delivered.
    pub delivery: Delivery,
    /// Settings of the stream, if this server creates it.
    pub stream: StreamConfig,
    /// Number of stream messages after which a snapshot of the index is uploaded to the object store.
    pub snapshot_threshold: u64,
    /// Whether to delete stream, snapshots and the local checkpoint at start.
    pub reset: bool,
}

/// Limits of the stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StreamConfig {
    /// How long the stream retains a batch.
    pub age_max: Duration,
    /// Maximum bytes of the stream.
    pub bytes_max: u64,
}
