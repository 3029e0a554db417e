use std::time::Duration;

/// Limits of the service. [`HubConfig`](kvasir_feed::hub::HubConfig) limits its sources.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IngestConfig {
    /// Maximum number of concurrent streams.
    pub streams_max: usize,
    /// How long a source may have no stream. After that it counts as gone, and all its blocks are dropped.
    pub source_timeout: Duration,
}

impl IngestConfig {
    /// Room for two streams of each source, because a new stream may open before the old one is known to be broken.
    pub const DEFAULT: Self = Self { streams_max: 32, source_timeout: Duration::from_secs(60) };
}

impl Default for IngestConfig {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// Time between two checks for sources without a stream.
pub(super) const EXPIRY_INTERVAL: Duration = Duration::from_secs(1);
