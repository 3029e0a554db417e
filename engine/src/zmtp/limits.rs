use std::time::Duration;

/// Limits of memory and time per peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Maximum length of a frame body, in bytes.
    pub frame_bytes_max: usize,
    /// Maximum number of frames in one message.
    pub message_frames_max: usize,
    /// Maximum length of a message, in bytes summed over its frames.
    pub message_bytes_max: usize,
    /// Timeout of name resolution and TCP connection together.
    pub connect_timeout: Duration,
    /// Timeout from an open TCP connection to the completed handshake (subscription written).
    pub handshake_timeout: Duration,
    /// Interval of PINGs. TCP keepalive probes use the same interval, in whole seconds.
    pub heartbeat_interval: Duration,
    /// A peer that receives PINGs counts as dead after sending no bytes for this long. Must be longer than
    /// `heartbeat_interval`. The peer receives it as its own timeout for us.
    pub heartbeat_timeout: Duration,
    /// A ZMTP 3.0 peer does not support PING, so an idle peer and a hung one look the same. After this time
    /// without bytes, we reconnect.
    pub silence_timeout: Duration,
    /// Minimum delay before a new attempt after a connection ended.
    pub backoff_min: Duration,
    /// Maximum delay between attempts. A connection of this age resets the backoff.
    pub backoff_max: Duration,
}

// === impl Limits ===

impl Limits {
    /// Default limits.
    pub const DEFAULTS: Self = Self {
        frame_bytes_max: 64 * 1024 * 1024,
        message_frames_max: 8,
        message_bytes_max: 64 * 1024 * 1024,
        connect_timeout: Duration::from_secs(5),
        handshake_timeout: Duration::from_secs(5),
        heartbeat_interval: Duration::from_secs(10),
        heartbeat_timeout: Duration::from_secs(30),
        silence_timeout: Duration::from_secs(120),
        backoff_min: Duration::from_millis(100),
        backoff_max: Duration::from_secs(5),
    };
}

impl Default for Limits {
    fn default() -> Self {
        Self::DEFAULTS
    }
}
