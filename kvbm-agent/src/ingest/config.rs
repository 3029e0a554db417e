use std::time::Duration;

/// Bounds of the service. Its sources are bounded by [`HubConfig`](kvasir_feed::hub::HubConfig).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IngestConfig {
    /// Most streams at a time.
    pub streams_max: usize,
    /// How long a source may have no stream before it counts as gone, and all that it held is dropped.
    pub source_timeout: Duration,
    /// A client that takes no answer for this long is cut off.
    pub stall_timeout: Duration,
}

impl IngestConfig {
    /// Room for two streams of each source: a new one may come before the old one is known to be gone.
    pub const DEFAULT: Self = Self {
        streams_max: 32,
        source_timeout: Duration::from_secs(60),
        stall_timeout: Duration::from_secs(30),
    };
}

impl Default for IngestConfig {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// Longest time until a hello.
pub(super) const HELLO_TIMEOUT: Duration = Duration::from_secs(10);
/// Answers of one stream that wait to be sent; no batch is read while there are so many.
pub(super) const ANSWERS_QUEUED_MAX: usize = 64;
/// How often to check for sources that are gone.
pub(super) const EXPIRY_INTERVAL: Duration = Duration::from_secs(1);
