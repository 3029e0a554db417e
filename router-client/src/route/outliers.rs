//! Outlier ejection: workers that fail repeatedly receive no requests for a while.

use super::error::{ConfigError, check};
use kvasir_proto::types::WorkerId;
use std::collections::BTreeMap;
use std::time::Duration;

/// Maximum workers whose failures are recorded.
pub const OUTLIERS_MAX: usize = 16_384;
/// Maximum doublings of the ejection time.
const DOUBLINGS_MAX: u32 = 16;

/// When a worker is ejected, and for how long. Not in the documents. The defaults are Envoy's, except the share,
/// because a fleet of engines is small.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OutlierConfig {
    /// Failures in a row before an ejection; 0 disables ejection.
    pub failures: u32,
    /// Duration of the first ejection. Each further ejection doubles it.
    pub ejection: Duration,
    /// Maximum duration of an ejection.
    pub ejection_max: Duration,
    /// Maximum percentage of the fleet's workers ejected at the same time.
    pub share_max_percent: u32,
}

#[derive(Debug, Default)]
struct Record {
    /// Failures in a row.
    failures: u32,
    /// Ejections in a row, without a success since.
    ejections: u32,
    /// End of the ejection.
    until: Duration,
}

/// Failures of the workers of one fleet.
#[derive(Debug)]
pub struct Outliers {
    config: OutlierConfig,
    /// Workers that failed and have not succeeded since.
    records: BTreeMap<WorkerId, Record>,
}

// === impl OutlierConfig ===

impl Default for OutlierConfig {
    fn default() -> Self {
        Self {
            failures: 5,
            ejection: Duration::from_secs(30),
            ejection_max: Duration::from_secs(300),
            share_max_percent: 50,
        }
    }
}

impl OutlierConfig {
    /// Checks all settings.
    ///
    /// # Errors
    /// If the maximum duration is shorter than the first, or the share exceeds 100 percent.
    pub fn check(&self) -> Result<(), ConfigError> {
        let is_good = self.ejection <= self.ejection_max;
        check(is_good, "ejection time", "must be at most the longest one")?;
        check(self.share_max_percent <= 100, "ejection share", "must be at most 100 percent")
    }
}

// === impl Outliers ===

impl Outliers {
    /// A table without failures.
    #[must_use]
    pub fn new(config: OutlierConfig) -> Self {
        debug_assert_eq!(config.check(), Ok(()), "the process refuses what cannot be used");
        Self { config, records: BTreeMap::new() }
    }

    /// Records a failed request of a worker in a fleet of `fleet` workers. Returns true if this failure ejects the
    /// worker. Returns false if ejection is off, or the worker is ejected already.
    pub fn failed(&mut self, worker: &WorkerId, fleet: usize, now: Duration) -> bool {
        if self.config.failures == 0 {
            return false;
        }
        if self.records.len() >= OUTLIERS_MAX && !self.records.contains_key(worker) {
            return false;
        }
        let ejected = self.records.values().filter(|record| now < record.until).count();
        let share = usize::try_from(self.config.share_max_percent).unwrap_or(usize::MAX);
        let has_room = (ejected + 1).saturating_mul(100) <= fleet.saturating_mul(share);
        let record = self.records.entry(worker.clone()).or_default();
        if now < record.until {
            // Ignore requests that began before the ejection.
            return false;
        }
        record.failures = record.failures.saturating_add(1);
        // A returning worker is on trial: one failure suffices to eject it again.
        let is_on_trial = record.ejections > 0;
        if !has_room || record.failures < self.config.failures && !is_on_trial {
            return false;
        }
        let doubled = self.config.ejection.saturating_mul(1 << record.ejections.min(DOUBLINGS_MAX));
        record.until = now.saturating_add(doubled.min(self.config.ejection_max));
        record.ejections = record.ejections.saturating_add(1);
        record.failures = 0;
        debug_assert!(ejected < fleet, "{ejected} of {fleet} were left alone");
        true
    }

    /// Records a success of a worker. During an ejection it is ignored, because the request began before.
    pub fn succeeded(&mut self, worker: &WorkerId, now: Duration) {
        if self.records.get(worker).is_some_and(|record| record.until <= now) {
            self.records.remove(worker);
        }
    }

    /// Whether a worker is ejected at `now`.
    #[must_use]
    pub fn is_ejected(&self, worker: &WorkerId, now: Duration) -> bool {
        self.records.get(worker).is_some_and(|record| now < record.until)
    }

    /// Whether any worker is ejected at `now`.
    #[must_use]
    pub fn has_ejected(&self, now: Duration) -> bool {
        self.records.values().any(|record| now < record.until)
    }

    /// Removes a worker that has left the fleet.
    pub fn forget(&mut self, worker: &WorkerId) {
        self.records.remove(worker);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::{prop_assert, proptest};

    const fn secs(secs: u64) -> Duration {
        Duration::from_secs(secs)
    }

    fn worker(name: &str) -> WorkerId {
        WorkerId::new(name).expect("a name")
    }

    /// Records several failures at one time; returns for each whether it began an ejection.
    fn fail(outliers: &mut Outliers, name: &str, times: usize, now: u64) -> Vec<bool> {
        (0..times).map(|_| outliers.failed(&worker(name), 4, secs(now))).collect()
    }

    #[test]
    fn who_fails_five_times_in_a_row_is_left_alone() {
        let mut outliers = Outliers::new(OutlierConfig::default());
        assert_eq!(fail(&mut outliers, "a", 4, 0), [false; 4]);
        outliers.succeeded(&worker("a"), secs(0));
        assert_eq!(fail(&mut outliers, "a", 5, 0), [false, false, false, false, true]);
        assert_eq!(fail(&mut outliers, "a", 9, 29), [false; 9], "they count once");
        outliers.succeeded(&worker("a"), secs(29));
        assert!(outliers.is_ejected(&worker("a"), secs(29)));
        assert!(!outliers.is_ejected(&worker("a"), secs(30)));
        assert!(!outliers.is_ejected(&worker("b"), secs(0)));
    }

    #[test]
    fn each_time_is_twice_as_long_until_a_success() {
        let mut outliers = Outliers::new(OutlierConfig::default());
        fail(&mut outliers, "a", 5, 0);
        let mut now = 30;
        for expected in [60, 120, 240, 300, 300] {
            assert_eq!(fail(&mut outliers, "a", 1, now), [true], "one failure suffices");
            assert!(outliers.is_ejected(&worker("a"), secs(now + expected - 1)));
            now += expected;
            assert!(!outliers.is_ejected(&worker("a"), secs(now)));
        }
        outliers.succeeded(&worker("a"), secs(now));
        assert_eq!(fail(&mut outliers, "a", 4, now), [false; 4]);
    }

    #[test]
    fn half_of_the_fleet_is_left_at_least() {
        let mut outliers = Outliers::new(OutlierConfig::default());
        for name in ["a", "b", "c", "d"] {
            fail(&mut outliers, name, 5, 0);
        }
        let ejected = ["a", "b", "c", "d"].map(|name| outliers.is_ejected(&worker(name), secs(1)));
        assert_eq!(ejected, [true, true, false, false]);
        outliers.forget(&worker("a"));
        assert_eq!(fail(&mut outliers, "c", 1, 1), [true], "it failed often enough");
        let off = OutlierConfig { failures: 0, ..OutlierConfig::default() };
        assert_eq!(fail(&mut Outliers::new(off), "a", 99, 0), [false; 99]);
    }

    #[test]
    fn what_cannot_be_used_is_refused() {
        let good = OutlierConfig::default();
        assert_eq!(good.check(), Ok(()));
        assert!(OutlierConfig { ejection: secs(301), ..good }.check().is_err());
        assert!(OutlierConfig { share_max_percent: 101, ..good }.check().is_err());
    }

    proptest! {
        #[test]
        fn never_more_than_the_share_are_left_alone(
            steps in proptest::collection::vec((0_usize..6, 0_u64..20, proptest::bool::weighted(0.8)), 0..200),
            share_max_percent in 0_u32..=100,
        ) {
            let names: Vec<_> = (0..6).map(|at| worker(&at.to_string())).collect();
            let config = OutlierConfig { failures: 2, share_max_percent, ..OutlierConfig::default() };
            let mut outliers = Outliers::new(config);
            let mut now = Duration::ZERO;
            for (at, wait, is_failure) in steps {
                now += secs(wait);
                if is_failure {
                    outliers.failed(&names[at], names.len(), now);
                } else {
                    outliers.succeeded(&names[at], now);
                }
                let ejected = names.iter().filter(|name| outliers.is_ejected(name, now)).count();
                prop_assert!(ejected * 100 <= names.len() * share_max_percent as usize);
            }
        }
    }
}
