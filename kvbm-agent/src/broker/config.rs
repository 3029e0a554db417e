use kvasir_process::nats::NatsServers;
use kvasir_proto::broker::Delivery;
use kvasir_proto::convert::Registration;
use kvasir_proto::types::Incarnation;
use std::sync::Arc;
use std::time::Duration;

/// Which NATS servers to use, and how.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BrokerConfig {
    /// Where to connect.
    pub servers: NatsServers,
    /// How batches are published.
    pub delivery: Delivery,
    /// How indexes that do not know the worker register it: worker and block size are those of the
    /// source, and there are no endpoints. The copy mode is the source's, whatever is set here.
    pub registration: Registration,
    /// Whether it publishes a goodbye when it stops, so that the worker is removed.
    pub deregister: bool,
}

/// How far a broker has come.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BrokerStatus {
    /// There is a connection that batches are published over.
    pub connected: bool,
    /// There is one over which requests are received.
    pub answering: bool,
    /// The incarnation that is published.
    pub incarnation: Incarnation,
    /// The last batch of that incarnation that was published and, in the stream, acknowledged.
    pub published: Option<u64>,
    /// Batches that could not be published: the journal had lost them, or the server takes no messages
    /// of their size. An index asks for them.
    pub skipped_batches: u64,
    /// Loads published since start.
    pub published_loads: u64,
    /// Connections made since start, without those for questions and loads.
    pub connections: u64,
    /// Why the last connection ended or could not be made, or a batch was skipped; none once there is
    /// another connection.
    pub error: Option<Arc<str>>,
}

impl BrokerStatus {
    /// Nothing is published yet.
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

/// Most batches published and not acknowledged by the stream yet,
pub(super) const UNACKED_BATCHES_MAX: usize = 256;
/// and the bytes that may be, before the next batch waits too.
pub(super) const UNACKED_BYTES_MAX: usize = 16 << 20;
/// Longest wait for the acknowledgement of the oldest.
pub(super) const ACK_TIMEOUT: Duration = Duration::from_secs(2);
/// Batches published over core NATS between two flushes.
pub(super) const FLUSH_BATCHES: usize = 64;
/// Commands that wait for the connection's task.
pub(super) const COMMANDS_QUEUED_MAX: usize = 512;
/// Messages of one subscription that wait to be read.
pub(super) const MESSAGES_QUEUED_MAX: usize = 256;
/// Largest question, in bytes: names and numbers only.
pub(super) const QUESTION_BYTES_MAX: usize = 16 << 10;
