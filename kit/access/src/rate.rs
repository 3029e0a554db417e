//! Rate limiter per name: token bucket (GCRA), without a timer. Pure: time is an argument, counted from any origin.

use std::collections::HashMap;
use std::time::Duration;

/// Maximum rate, in queries per second.
pub const QUERIES_PER_SECOND_MAX: u32 = 1_000_000;
/// Maximum number of names with a bucket of their own. Further names active at the same time share one bucket.
pub const NAMES_TRACKED_MAX: usize = 4_096;
/// Minimum time between two searches for buckets that are full again and can be dropped.
const PRUNE_INTERVAL: Duration = Duration::from_millis(100);

/// A rate in queries per second, with a burst after idle time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rate {
    /// Time per query at this rate (GCRA's emission interval).
    each: Duration,
    /// How far a bucket's time may be ahead of now (GCRA's tolerance): the burst less one query.
    ahead: Duration,
}

/// Why a rate is invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RateError {
    /// The rate is out of range.
    #[error("is {0} queries per second, must be 1 to {QUERIES_PER_SECOND_MAX}")]
    PerSecond(u32),
    /// A burst of 0 would reject every query.
    #[error("is a burst of 0 queries, must be 1 or more")]
    Burst,
}

impl Rate {
    /// Creates a rate. The default burst is one second's worth of queries.
    ///
    /// # Errors
    /// If a value is 0, or there are too many queries per second.
    pub fn new(per_second: u32, burst: Option<u32>) -> Result<Self, RateError> {
        if !(1..=QUERIES_PER_SECOND_MAX).contains(&per_second) {
            return Err(RateError::PerSecond(per_second));
        }
        let each = Duration::from_secs(1) / per_second;
        let further = burst.unwrap_or(per_second).checked_sub(1).ok_or(RateError::Burst)?;
        Ok(Self { each, ahead: each.saturating_mul(further) })
    }
}

/// One name's bucket: the time until which its queries are paid for (GCRA's theoretical arrival time). A bucket whose
/// time has passed is full.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Bucket(Duration);

impl Bucket {
    /// Takes one query from the bucket. Fails, and takes none, if the rate is used up; the error is the time until the
    /// next query is allowed.
    fn take_query(&mut self, rate: Rate, now: Duration) -> Result<(), Duration> {
        let paid = self.0.max(now);
        let wait = paid.saturating_sub(now).saturating_sub(rate.ahead);
        if !wait.is_zero() {
            return Err(wait);
        }
        self.0 = paid.saturating_add(rate.each);
        Ok(())
    }
}

/// Buckets by name, for example by tenant.
#[derive(Debug, Default)]
pub struct Used {
    names: HashMap<Box<str>, Bucket>,
    /// Shared bucket of the names that do not fit into `names`.
    others: Bucket,
    /// Earliest time of the next search in `names`.
    prune_at: Duration,
}

impl Used {
    /// Takes one query from the bucket of `name`. Names beyond [`NAMES_TRACKED_MAX`] share one bucket.
    ///
    /// # Errors
    /// If the rate is used up. The error is the time after which the name may retry.
    pub fn take(&mut self, name: &str, rate: Rate, now: Duration) -> Result<(), Duration> {
        if let Some(bucket) = self.names.get_mut(name) {
            return bucket.take_query(rate, now);
        }
        if self.names.len() >= NAMES_TRACKED_MAX && now >= self.prune_at {
            self.prune_at = now + PRUNE_INTERVAL;
            self.names.retain(|_, bucket| bucket.0 > now);
        }
        if self.names.len() >= NAMES_TRACKED_MAX {
            return self.others.take_query(rate, now);
        }
        self.names.entry(name.into()).or_default().take_query(rate, now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn rate(per_second: u32, burst: u32) -> Rate {
        Rate::new(per_second, Some(burst)).expect("a rate")
    }

    #[test]
    fn a_burst_is_let_through_and_then_the_rate() {
        let mut used = Used::default();
        let rate = rate(10, 3);
        let now = 100 * SECOND;
        let taken: Vec<_> = (0..4).map(|_| used.take("a", rate, now)).collect();
        assert_eq!(taken, [Ok(()), Ok(()), Ok(()), Err(SECOND / 10)]);
        assert_eq!(used.take("a", rate, now + SECOND / 20), Err(SECOND / 20));
        assert_eq!(used.take("a", rate, now + SECOND / 10), Ok(()));
        assert_eq!(used.take("b", rate, now), Ok(()), "another one has its own");
        let later = now + 10 * SECOND;
        let let_through = (0..10).filter(|_| used.take("a", rate, later).is_ok()).count();
        assert_eq!(let_through, 3, "a pause saves up no more than the burst");
    }

    #[test]
    fn rates_that_let_nothing_through_are_refused() {
        assert_eq!(Rate::new(0, None), Err(RateError::PerSecond(0)));
        let too_many = QUERIES_PER_SECOND_MAX + 1;
        assert_eq!(Rate::new(too_many, None), Err(RateError::PerSecond(too_many)));
        assert_eq!(Rate::new(1, Some(0)), Err(RateError::Burst));
        assert_eq!(Rate::new(5, None), Rate::new(5, Some(5)));
        assert!(Rate::new(QUERIES_PER_SECOND_MAX, Some(u32::MAX)).is_ok());
    }

    #[test]
    fn names_beyond_the_most_share_an_allowance_and_no_other_name_notices() {
        let mut used = Used::default();
        let rate = rate(1, 1);
        for number in 0..NAMES_TRACKED_MAX {
            assert_eq!(used.take(&number.to_string(), rate, SECOND), Ok(()));
        }
        assert_eq!(used.take("more", rate, SECOND), Ok(()));
        assert_eq!(used.take("and more", rate, SECOND), Err(SECOND));
        assert_eq!(used.take("7", rate, 2 * SECOND), Ok(()));
        assert_eq!(used.names.len(), NAMES_TRACKED_MAX);
        assert_eq!(used.take("and more", rate, 2 * SECOND), Ok(()));
        assert!(used.names.len() < 3, "who owes nothing is forgotten");
    }

    proptest! {
        #[test]
        fn no_stretch_of_time_has_more_than_the_burst_and_the_rate(
            per_second in 1_u32..2_000,
            burst in 1_u32..100,
            pauses in vec(0_u64..3_000_000, 1..300),
        ) {
            let mut used = Used::default();
            let rate = rate(per_second, burst);
            let mut now = Duration::ZERO;
            let mut taken = Vec::new();
            for pause in pauses {
                now += Duration::from_micros(pause);
                match used.take("a", rate, now) {
                    Ok(()) => taken.push(now),
                    Err(wait) => {
                        prop_assert!(!wait.is_zero() && wait <= SECOND / per_second);
                        prop_assert!(used.take("a", rate, now + wait).is_ok());
                        taken.push(now + wait);
                        now += wait;
                    }
                }
            }
            for (first, begin) in taken.iter().enumerate() {
                for (last, end) in taken.iter().enumerate().skip(first) {
                    let refilled = (*end - *begin).as_nanos() * u128::from(per_second) / 1_000_000_000;
                    prop_assert!((last - first + 1) as u128 <= u128::from(burst) + refilled + 1);
                }
            }
        }
    }
}
