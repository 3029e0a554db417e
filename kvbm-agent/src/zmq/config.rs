use kvasir_proto::types::Incarnation;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

/// High-water mark of the live socket: bytes of batches that subscribers have not been sent yet. What comes on
/// top is not sent to anybody.
pub const UNSENT_BYTES_MAX: usize = 64 << 20;
/// Bytes of a replay that its peer has not been sent yet, before the next batch waits.
pub const REPLAY_UNSENT_BYTES_MAX: usize = 4 << 20;
/// Replays of which something has not been sent yet; the next waits.
pub const REPLAYS_UNSENT_MAX: usize = 8;
/// Longest wait for a peer to take some of its replay, or for room for another replay; a replay that does not
/// continue is cancelled, and its peer has to ask again.
pub const REPLAY_STALL_TIMEOUT: Duration = Duration::from_secs(5);
/// What a message counts besides its payload: its frames and places in queues.
pub const MESSAGE_OVERHEAD_BYTES: usize = 256;
/// Topic of live batches, unless it is configured.
pub const ZMQ_TOPIC_DEFAULT: &str = "kv-events";
/// Longest topic.
pub const TOPIC_BYTES_MAX: usize = 256;
/// Longest wait, when the agent stops, until subscribers have been sent what was published.
pub(super) const FLUSH_TIMEOUT: Duration = Duration::from_secs(2);
/// Batches read from the journal at a time.
pub(super) const BATCHES_AT_ONCE: usize = 64;

/// Where and how an agent publishes as an engine does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ZmqConfig {
    /// The PUB socket; port 0 is any.
    pub listen: SocketAddr,
    /// The ROUTER that replays; port 0 is any.
    pub replay: SocketAddr,
    /// Topic of live batches, at most [`TOPIC_BYTES_MAX`] bytes.
    pub topic: String,
}

impl Default for ZmqConfig {
    /// Loopback, vLLM's own port and the next, topic `kv-events`.
    fn default() -> Self {
        let loopback = IpAddr::V4(Ipv4Addr::LOCALHOST);
        Self {
            listen: SocketAddr::new(loopback, 5_557),
            replay: SocketAddr::new(loopback, 5_558),
            topic: ZMQ_TOPIC_DEFAULT.to_owned(),
        }
    }
}

/// Why an agent does not publish as an engine does.
#[derive(Debug, thiserror::Error)]
pub enum ZmqConfigError {
    /// The topic is too long.
    #[error("zmq-topic: has {bytes} bytes, the limit is {limit}")]
    Topic {
        /// Its length.
        bytes: usize,
        /// The most that is taken.
        limit: usize,
    },
    /// A port cannot be had.
    #[error("{field}: cannot listen on {address}: {error}; choose another address with --{field}")]
    Bind {
        /// Which socket, by its option.
        field: &'static str,
        /// Where it should be.
        address: SocketAddr,
        /// Why it is not.
        error: io::Error,
    },
}

/// How far a publisher has come. Who listens, and what they took, it cannot know.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ZmqStatus {
    /// The incarnation that is published.
    pub incarnation: Incarnation,
    /// The last batch of that incarnation that was published.
    pub published: Option<u64>,
    /// Batches published since start.
    pub published_batches: u64,
    /// Batches that were not sent, for subscribers had not taken enough of what was sent before. They can be
    /// had by replay.
    pub unsent_batches: u64,
    /// Batches that the journal had lost before they were published.
    pub skipped_batches: u64,
    /// Replays answered to their end.
    pub replays: u64,
    /// Batches sent in replays.
    pub replayed_batches: u64,
    /// Replays cancelled: their peers went away, or took nothing.
    pub broken_replays: u64,
}

impl ZmqStatus {
    /// Nothing is published yet.
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
