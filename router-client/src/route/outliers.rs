//! Workers that fail again and again are left alone for a while.

use super::error::{ConfigError, check};
use kvasir_proto::types::WorkerId;
use std::collections::BTreeMap;
use std::time::Duration;

/// Most workers whose failures are remembered.
pub const OUTLIERS_MAX: usize = 16_384;
/// Most often that a time doubles.
const DOUBLINGS_MAX: u32 = 16;

/// When a worker is left alone, and for how long. Not in the documents: the defaults are Envoy's, but for the share,
/// because a fleet of engines is small.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OutlierConfig {
    /// Failures in a row; 0 turns it off.
    pub failures: u32,
    /// How long the first time. Each further time doubles it.
    pub ejection: Duration,
    /// How long at most.
    pub ejection_max: Duration,
    /// Most workers of the fleet that are left alone at once, in percent.
    pub share_max_percent: u32,
}

#[derive(Debug, Default)]
struct Record {
    /// In a row.
    failures: u32,
    /// In a row, without a success since.
    ejections: u32,
    /// Left alone until then.
    until: Duration,
}

/// Failures of the workers of one fleet.
#[derive(Debug)]
pub struct Outliers {
    config: OutlierConfig,
    /// Workers that failed and did not succeed since.
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
    /// Whether all settings can be used.
    ///
    /// # Errors
    /// If the longest time is shorter than the first, or the share is more than all.
    pub fn check(&self) -> Result<(), ConfigError> {
        let is_good = self.ejection <= self.ejection_max;
        check(is_good, "ejection time", "must be at most the longest one")?;
        check(self.share_max_percent <= 100, "ejection share", "must be at most 100 percent")
    }
}

// === impl Outliers ===

impl Outliers {
    /// Nobody has failed.
    #[must_use]
    pub fn new(config: OutlierConfig) -> Self {
        debug_assert_eq!(config.check(), Ok(()), "the process refuses what cannot be used");
        Self { config, records: BTreeMap::new() }
    }

    /// A worker of a fleet of `fleet` workers failed a request. True if it is left alone from now on.
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
            // Requests that were under way before end now.
            return false;
        }
        record.failures = record.failures.saturating_add(1);
        // Who comes back is on trial: one failure suffices.
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

    /// A worker served a request. That of one begun before it was left alone does not end that.
    pub fn succeeded(&mut self, worker: &WorkerId, now: Duration) {
        if self.records.get(worker).is_some_and(|record| record.until <= now) {
            self.records.remove(worker);
        }
    }

    /// Whether a worker is left alone at `now`.
    #[must_use]
    pub fn is_ejected(&self, worker: &WorkerId, now: Duration) -> bool {
        self.records.get(worker).is_some_and(|record| now < record.until)
    }

    /// Whether any worker is left alone at `now`.
    #[must_use]
    pub fn has_ejected(&self, now: Duration) -> bool {
        self.records.values().any(|record| now < record.until)
    }

    /// Forgets a worker that went.
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

    /// Failures at a time: whether each began a time alone.
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
