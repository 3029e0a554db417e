use crate::route::error::{ConfigError, check};
use std::time::Duration;

/// Shortest time between two digests.
pub const SYNC_DIGEST_INTERVAL_MIN: Duration = Duration::from_millis(100);
/// Longest time between two digests.
pub const SYNC_DIGEST_INTERVAL_MAX: Duration = Duration::from_secs(60);
/// Digests that may be lost in a row before a lease ends.
const DIGESTS_PER_LEASE_MIN: u32 = 3;

/// How a router keeps its replicas informed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SyncConfig {
    /// Time between two digests: for about so long a lost event has an effect.
    pub digest_interval: Duration,
}

impl Default for SyncConfig {
    fn default() -> Self {
        Self { digest_interval: Duration::from_secs(5) }
    }
}

impl SyncConfig {
    /// Whether the settings can be used with requests of this lease.
    ///
    /// # Errors
    /// If the interval is not between [`SYNC_DIGEST_INTERVAL_MIN`] and [`SYNC_DIGEST_INTERVAL_MAX`], or is longer than
    /// a third of the lease: requests of a living router would expire at its replicas when few digests are lost.
    pub fn check(&self, lease: Duration) -> Result<(), ConfigError> {
        let intervals = SYNC_DIGEST_INTERVAL_MIN..=SYNC_DIGEST_INTERVAL_MAX;
        let is_good = intervals.contains(&self.digest_interval);
        check(is_good, "sync digest interval", "must be between 0.1 and 60 seconds")?;
        let is_good = self.digest_interval <= lease / DIGESTS_PER_LEASE_MIN;
        check(is_good, "sync digest interval", "must be at most a third of the request lease")
    }
}
