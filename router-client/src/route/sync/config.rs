use crate::route::error::{ConfigError, check};
use std::time::Duration;

/// Minimum time between two digests.
pub const SYNC_DIGEST_INTERVAL_MIN: Duration = Duration::from_millis(100);
/// Maximum time between two digests.
pub const SYNC_DIGEST_INTERVAL_MAX: Duration = Duration::from_secs(60);
/// Number of digest intervals that a lease must cover at least.
const DIGESTS_PER_LEASE_MIN: u32 = 3;

/// Settings of replica sync.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SyncConfig {
    /// Time between two digests: the effect of a lost event lasts about this long.
    pub digest_interval: Duration,
}

impl Default for SyncConfig {
    fn default() -> Self {
        Self { digest_interval: Duration::from_secs(5) }
    }
}

impl SyncConfig {
    /// Checks the settings for requests with this lease.
    ///
    /// # Errors
    /// If the interval is not between [`SYNC_DIGEST_INTERVAL_MIN`] and [`SYNC_DIGEST_INTERVAL_MAX`], or exceeds a third
    /// of the lease. Otherwise a few lost digests would expire requests of a living router at its replicas.
    pub fn check(&self, lease: Duration) -> Result<(), ConfigError> {
        let intervals = SYNC_DIGEST_INTERVAL_MIN..=SYNC_DIGEST_INTERVAL_MAX;
        let is_good = intervals.contains(&self.digest_interval);
        check(is_good, "sync digest interval", "must be between 0.1 and 60 seconds")?;
        let is_good = self.digest_interval <= lease / DIGESTS_PER_LEASE_MIN;
        check(is_good, "sync digest interval", "must be at most a third of the request lease")
    }
}
