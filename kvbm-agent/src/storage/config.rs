use kvasir_blocks::BlockTier;
use std::time::Duration;

/// How often storage events are published, unless it is configured.
pub const STORAGE_INTERVAL_DEFAULT: Duration = Duration::from_secs(10);

/// How storage events are published.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StorageConfig {
    /// Longest time that an event waits for others. Also how often each location gives a sign of life, and the least time
    /// between two images. Not 0.
    pub interval: Duration,
    /// Name of the volume, of at most 57 bytes, by which subscribers recognise it behind other agents; none for no name.
    pub volume_name: Option<String>,
}

impl StorageConfig {
    /// The location that a tier is.
    #[must_use]
    pub fn location(&self, tier: BlockTier) -> String {
        match (&self.volume_name, tier) {
            (Some(name), BlockTier::Volume) => format!("{tier}:{name}"),
            _ => tier.to_string(),
        }
    }
}
