use std::time::Duration;

/// What one peer may cost, and how long it may take.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Longest accepted frame body, in bytes.
    pub frame_bytes_max: usize,
    /// Most frames in one message.
    pub message_frames_max: usize,
    /// Longest accepted message, in bytes summed over its frames.
    pub message_bytes_max: usize,
    /// Time for name resolution and the TCP connection.
    pub connect_timeout: Duration,
    /// Time from an open TCP connection to a completed handshake (subscription written).
    pub handshake_timeout: Duration,
    /// A PING goes out this often. TCP keepalive probes use the same interval, in
    /// whole seconds.
    pub heartbeat_interval: Duration,
    /// A peer that we PING and that sends nothing for this long is gone. Must be longer than
    /// `heartbeat_interval`. Sent to the peer as the time after which it may drop us likewise.
    pub heartbeat_timeout: Duration,
    /// A peer of ZMTP 3.0, which knows no PING, is dialled anew after sending nothing for this
    /// long: an idle peer and a hung one look the same.
    pub silence_timeout: Duration,
    /// Delay before the first new attempt after a connection ended.
    pub backoff_min: Duration,
    /// Longest delay between attempts; also the age from which a connection counts as sound.
    pub backoff_max: Duration,
}

// === impl Limits ===

impl Limits {
    /// The values used where nothing else is configured.
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
