use kvasir_process::nats::NatsServers;
use kvasir_proto::broker::Delivery;
use kvasir_proto::convert::Registration;
use kvasir_proto::types::Incarnation;
use std::sync::Arc;
use std::time::Duration;

/// NATS servers, and how to publish there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BrokerConfig {
    /// Servers to connect to.
    pub servers: NatsServers,
    /// How batches are published.
    pub delivery: Delivery,
    /// Registration for indexes that lack the worker. Worker and block size equal the source's, and there are no
    /// endpoints. The copy mode is always the source's, whatever is set here.
    pub registration: Registration,
    /// Whether to publish a goodbye at the stop, so that the worker is removed.
    pub deregister: bool,
}

/// Progress of a broker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BrokerStatus {
    /// Whether the connection for batches is open.
    pub connected: bool,
    /// Whether the connection for requests is open.
    pub answering: bool,
    /// The published incarnation.
    pub incarnation: Incarnation,
    /// Last batch of the incarnation that was published and, with JetStream, acknowledged.
    pub published: Option<u64>,
    /// Batches that could not be published: evicted from the journal, or larger than the server accepts. Indexes
    /// request them.
    pub skipped_batches: u64,
    /// Number of loads published since start.
    pub published_loads: u64,
    /// Number of connections since start, without those for requests and loads.
    pub connections: u64,
    /// Why the last connection ended or failed, or a batch was skipped; `None` once there is another connection.
    pub error: Option<Arc<str>>,
}

impl BrokerStatus {
    /// Initial status: nothing is published yet.
    #[must_use]
    pub const fn new(incarnation: Incarnation) -> Self {
        Self {
            connected: false,
            answering: false,
            incarnation,
            published: None,
            skipped_batches: 0,
            published_loads: 0,
            connections: 0,
            error: None,
        }
    }
}

/// Maximum number of batches that the stream has not acknowledged yet.
pub(super) const UNACKED_BATCHES_MAX: usize = 256;
/// Number of unacknowledged bytes from which the next batch waits.
pub(super) const UNACKED_BYTES_MAX: usize = 16 << 20;
/// Maximum wait for the acknowledgement of the oldest batch.
pub(super) const ACK_TIMEOUT: Duration = Duration::from_secs(2);
/// Number of batches between two flushes, over core NATS.
pub(super) const FLUSH_BATCHES: usize = 64;
/// Maximum number of commands queued for the connection's task.
pub(super) const COMMANDS_QUEUED_MAX: usize = 512;
/// Maximum number of unread messages of one subscription.
pub(super) const MESSAGES_QUEUED_MAX: usize = 256;
/// Maximum size of a request in bytes. Requests have only names and numbers.
pub(super) const QUESTION_BYTES_MAX: usize = 16 << 10;
