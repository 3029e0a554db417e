use async_nats::ServerAddr;
use kvasir_process::text::ServerUrl;
use kvasir_proto::broker::Delivery;
use kvasir_proto::convert::Registration;
use kvasir_proto::types::Incarnation;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

/// Which NATS servers to use, and how.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BrokerConfig {
    /// `nats://host:port`, several with commas between; with `user:password@` or `token@` where the
    /// servers ask for that.
    pub url: ServerUrl,
    /// How batches are published.
    pub delivery: Delivery,
    /// How indexes that do not know the worker register it: worker and block size are those of the
    /// source, and there are no endpoints. The copy mode is the source's, whatever is set here.
    pub registration: Registration,
    /// Whether it publishes a goodbye when it stops, so that the worker is removed.
    pub deregister: bool,
}

/// The servers that the URL of a configuration names.
///
/// # Errors
/// If one of them is none; the text names no password.
pub fn read_servers(url: &str) -> Result<Vec<ServerAddr>, String> {
    let servers = url.split(',').map(|server| {
        let server = ServerAddr::from_str(server).map_err(|error| error.to_string())?;
        if server.host().is_empty() { Err("there is no host".to_owned()) } else { Ok(server) }
    });
    let servers: Result<_, _> = servers.collect();
    servers.map_err(|error| format!("{error}: write nats://host:port, several with commas between"))
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
/// Longest time until a connection is open,
pub(super) const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// and until a question to the server itself is answered.
pub(super) const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// How often the server is pinged; a ping without an answer ends the connection.
pub(super) const PING_INTERVAL: Duration = Duration::from_secs(10);
/// Largest question, in bytes: names and numbers only.
pub(super) const QUESTION_BYTES_MAX: usize = 16 << 10;
