use std::time::Duration;

/// Bounds of the service. Its sources are bounded by [`HubConfig`](kvasir_feed::hub::HubConfig).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IngestConfig {
    /// Most streams at a time.
    pub streams_max: usize,
    /// How long a source may have no stream before it counts as gone, and all that it held is dropped.
    pub source_timeout: Duration,
}

impl IngestConfig {
    /// Room for two streams of each source: a new one may come before the old one is known to be gone.
    pub const DEFAULT: Self = Self { streams_max: 32, source_timeout: Duration::from_secs(60) };
}

impl Default for IngestConfig {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// How often to check for sources that are gone.
pub(super) const EXPIRY_INTERVAL: Duration = Duration::from_secs(1);
