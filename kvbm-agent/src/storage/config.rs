use kvasir_blocks::BlockTier;
use std::time::Duration;

/// Default time between two publications of storage events.
pub const STORAGE_INTERVAL_DEFAULT: Duration = Duration::from_secs(10);

/// How storage events are published.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StorageConfig {
    /// Maximum time that an event waits for others. Also the time between two heartbeats (empty batches) of each
    /// location, and the minimum time between two images. Not 0.
    pub interval: Duration,
    /// Name of the volume, at most 57 bytes, by which subscribers recognise it at other agents; `None` for no name.
    pub volume_name: Option<String>,
}

impl StorageConfig {
    /// Name of a tier's location.
    #[must_use]
    pub fn location(&self, tier: BlockTier) -> String {
        match (&self.volume_name, tier) {
            (Some(name), BlockTier::Volume) => format!("{tier}:{name}"),
            _ => tier.to_string(),
        }
    }
}
