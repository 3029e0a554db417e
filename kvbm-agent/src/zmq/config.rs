use kvasir_proto::types::Incarnation;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

/// High-water mark of the live socket: maximum bytes of batches not sent to subscribers yet. Batches beyond it are sent
/// to no subscriber.
pub const UNSENT_BYTES_MAX: usize = 64 << 20;
/// Number of unsent bytes of a replay from which the next batch waits.
pub const REPLAY_UNSENT_BYTES_MAX: usize = 4 << 20;
/// Maximum number of replays with unsent messages. The next replay waits.
pub const REPLAYS_UNSENT_MAX: usize = 8;
/// Maximum wait for a peer to take part of its replay, or for room for another replay. A stalled replay is cancelled,
/// and its peer must request it again.
pub const REPLAY_STALL_TIMEOUT: Duration = Duration::from_secs(5);
/// Counted bytes of a message besides its payload: its frames and queue slots.
pub const MESSAGE_OVERHEAD_BYTES: usize = 256;
/// Default topic of live batches.
pub const ZMQ_TOPIC_DEFAULT: &str = "kv-events";
/// Maximum length of a topic in bytes.
pub const TOPIC_BYTES_MAX: usize = 256;
/// Maximum wait for unsent messages to subscribers when the agent stops.
pub(super) const FLUSH_TIMEOUT: Duration = Duration::from_secs(2);
/// Batches read from the journal at a time.
pub(super) const BATCHES_AT_ONCE: usize = 64;

/// ZMQ sockets on which an agent publishes like an engine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ZmqConfig {
    /// Address of the PUB socket. Port 0 is any free port.
    pub listen: SocketAddr,
    /// Address of the ROUTER socket that replays. Port 0 is any free port.
    pub replay: SocketAddr,
    /// Topic of live batches, at most [`TOPIC_BYTES_MAX`] bytes.
    pub topic: String,
}

impl Default for ZmqConfig {
    /// Loopback, vLLM's default port and the next one, topic `kv-events`.
    fn default() -> Self {
        let loopback = IpAddr::V4(Ipv4Addr::LOCALHOST);
        Self {
            listen: SocketAddr::new(loopback, 5_557),
            replay: SocketAddr::new(loopback, 5_558),
            topic: ZMQ_TOPIC_DEFAULT.to_owned(),
        }
    }
}

/// Why the ZMQ sockets cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ZmqConfigError {
    /// The topic is too long.
    #[error("zmq topic: has {bytes} bytes, the limit is {limit}")]
    Topic {
        /// Length of the topic in bytes.
        bytes: usize,
        /// Maximum length in bytes.
        limit: usize,
    },
    /// A port cannot be opened.
    #[error("{field}: cannot listen on {address}: {error}; choose another address with --{field}=")]
    Bind {
        /// Option of the socket.
        field: &'static str,
        /// Requested address.
        address: SocketAddr,
        /// Underlying error.
        error: io::Error,
    },
}

/// Progress of a ZMQ publisher. It has no information about its subscribers, and what they received.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ZmqStatus {
    /// The published incarnation.
    pub incarnation: Incarnation,
    /// Last published batch of the incarnation.
    pub published: Option<u64>,
    /// Number of batches published since start.
    pub published_batches: u64,
    /// Number of batches that were not sent, because subscribers were too slow. Replays still have them.
    pub unsent_batches: u64,
    /// Number of batches evicted from the journal before they were published.
    pub skipped_batches: u64,
    /// Number of completed replays.
    pub replays: u64,
    /// Number of batches sent in replays.
    pub replayed_batches: u64,
    /// Number of cancelled replays: their peers disconnected, or stalled.
    pub broken_replays: u64,
}

impl ZmqStatus {
    /// Initial status: nothing is published yet.
    #[must_use]
    pub const fn new(incarnation: Incarnation) -> Self {
        Self {
            incarnation,
            published: None,
            published_batches: 0,
            unsent_batches: 0,
            skipped_batches: 0,
            replays: 0,
            replayed_batches: 0,
            broken_replays: 0,
        }
    }
}
