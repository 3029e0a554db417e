use super::scrape::ScrapeConfig;
use super::{LoadError, Totals};
use kvasir_proto::limits::LOADS_INTERVAL_MS_DEFAULT;
use std::time::Duration;

/// Lower limit of [`LoadConfig::min_interval`].
const MIN_INTERVAL_MIN: Duration = Duration::from_millis(10);

/// How an agent reads its worker's loads, and publishes them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoadConfig {
    /// How to read the engine's metrics; `None` to not read them.
    pub scrape: Option<ScrapeConfig>,
    /// Totals of ranks that do not report them.
    pub totals: Totals,
    /// Minimum time between two loads of a rank over NATS, at least 10 ms. Changes within this time are merged.
    pub min_interval: Duration,
    /// Time after which a report that was not repeated is dropped; not 0.
    pub stale_after: Duration,
}

impl LoadConfig {
    /// Reads no metrics, and publishes up to ten loads a second. A report is valid for 30 s.
    pub const DEFAULT: Self = Self {
        scrape: None,
        totals: Totals { request_slots: None, kv_blocks: None },
        min_interval: Duration::from_millis(LOADS_INTERVAL_MS_DEFAULT as u64),
        stale_after: Duration::from_secs(30),
    };

    /// # Errors
    /// If a time is too short.
    pub(crate) fn check(&self) -> Result<(), LoadError> {
        if self.min_interval < MIN_INTERVAL_MIN {
            let actual = self.min_interval;
            let min = MIN_INTERVAL_MIN;
            return Err(LoadError::TooShort { field: "min_interval", actual, min });
        }
        if self.stale_after.is_zero() {
            let actual = self.stale_after;
            let min = Duration::from_nanos(1);
            return Err(LoadError::TooShort { field: "stale_after", actual, min });
        }
        Ok(())
    }
}

impl Default for LoadConfig {
    fn default() -> Self {
        Self::DEFAULT
    }
}
