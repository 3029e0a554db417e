//! Limits that all tenants or callers share, with a maximum share per tenant or caller (fair sharing).

use crate::net::{Limit, Share};
use prometheus_client::metrics::gauge::Gauge;
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

/// Number of sharers at which idle ones are first searched and dropped.
const SWEPT_MIN: usize = 64;

/// Maximum share of one sharer, in thousandths of the limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct LargestShare(u16);

impl LargestShare {
    /// One sharer may take everything.
    pub const ALL: Self = Self(1_000);
    /// One sharer may take half.
    pub const HALF: Self = Self(500);

    /// Creates a share of 0.001 to 1, rounded down to thousandths. Returns `None` for any other number.
    #[must_use]
    pub fn new(share: f64) -> Option<Self> {
        let thousandths = (share * 1_000.0 + f64::EPSILON).floor();
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "1 to 1,000, and whole"
        )]
        (share <= 1.0 && thousandths >= 1.0).then_some(Self(thousandths as u16))
    }

    /// This share of a limit, at least 1.
    const fn part_of(self, max: usize) -> usize {
        let part = max / 1_000 * self.0 as usize + max % 1_000 * self.0 as usize / 1_000;
        if part == 0 { 1 } else { part }
    }
}

/// A limit with its sharers.
#[derive(Debug)]
pub struct SharedLimit {
    all: Limit,
    share_max: usize,
    sharers: Mutex<Sharers>,
}

#[derive(Debug, Default)]
struct Sharers {
    limits: HashMap<Box<str>, Limit>,
    /// Number of sharers at which idle ones are dropped.
    swept_at: usize,
}

/// The amount that one sharer has taken of a limit, released on drop.
#[derive(Debug)]
pub struct TakenShare {
    of_all: Share,
    of_sharer: Share,
}

/// The limit has too little left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Exhausted {
    /// Amount that is still free.
    pub free: usize,
    /// The maximum.
    pub max: usize,
    /// Whether the sharer's own share is exhausted; false if the total is.
    pub is_share: bool,
}

impl SharedLimit {
    /// Creates an unused limit.
    #[must_use]
    pub fn new(max: usize, share: LargestShare) -> Self {
        let all = Limit::new(max, Gauge::default());
        Self { all, share_max: share.part_of(max), sharers: Mutex::default() }
    }

    /// Takes `count` for the sharer with this name: a tenant or a caller.
    ///
    /// # Errors
    /// If the sharer's share or the total limit has less left.
    pub fn take(&self, sharer: &str, count: usize) -> Result<TakenShare, Exhausted> {
        // Code under this lock does not panic. The lock is held until the amount is taken, so that the sharer's limit
        // is not dropped before.
        let mut sharers = self.sharers.lock().unwrap_or_else(PoisonError::into_inner);
        let own = sharers.limit_of(sharer, self.share_max);
        let of_sharer = own.take(count).ok_or_else(|| exhausted(own, true))?;
        let of_all = self.all.take(count).ok_or_else(|| exhausted(&self.all, false))?;
        Ok(TakenShare { of_all, of_sharer })
    }
}

fn exhausted(limit: &Limit, is_share: bool) -> Exhausted {
    let max = usize::try_from(limit.max()).unwrap_or_default();
    Exhausted { free: limit.free(), max, is_share }
}

impl TakenShare {
    /// Takes `count` more for the same sharer. Returns false, and takes nothing, if a limit has less left.
    #[must_use]
    pub fn grow(&mut self, count: usize) -> bool {
        if !self.of_sharer.grow(count) {
            return false;
        }
        let has_grown = self.of_all.grow(count);
        if !has_grown {
            drop(self.of_sharer.split(count));
        }
        has_grown
    }
}

impl Sharers {
    fn limit_of(&mut self, sharer: &str, max: usize) -> &Limit {
        if self.limits.len() >= self.swept_at.max(SWEPT_MIN) && !self.limits.contains_key(sharer) {
            self.limits.retain(|_, limit| limit.is_held());
            self.swept_at = 2 * self.limits.len();
        }
        self.limits.entry(sharer.into()).or_insert_with(|| Limit::new(max, Gauge::default()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn share(share: f64) -> LargestShare {
        LargestShare::new(share).expect("a share")
    }

    #[test]
    fn a_share_is_a_thousandth_to_everything() {
        for wrong in [0.0, -0.5, 0.000_9, 1.001, f64::NAN, f64::INFINITY] {
            assert_eq!(LargestShare::new(wrong), None, "{wrong}");
        }
        assert_eq!(LargestShare::new(1.0), Some(LargestShare::ALL));
        for (part, max, of) in [(0.25, 4_096, 1_024), (0.29, 100, 29), (0.001, 10, 1), (0.5, 3, 1)]
        {
            assert_eq!(share(part).part_of(max), of, "{part} of {max}");
        }
        assert_eq!(LargestShare::ALL.part_of(usize::MAX), usize::MAX);
    }

    #[test]
    fn who_takes_a_part_leaves_others_theirs() {
        let limit = SharedLimit::new(10, share(0.5));
        let taken = [limit.take("a", 2), limit.take("a", 3)].map(|at| at.expect("room"));
        let refused = limit.take("a", 1).expect_err("its part is taken");
        assert_eq!(refused, Exhausted { free: 0, max: 5, is_share: true });
        let other = limit.take("", 4).expect("another part");
        let refused = limit.take("c", 2).expect_err("one is left");
        assert_eq!(refused, Exhausted { free: 1, max: 10, is_share: false });
        drop(taken);
        limit.take("c", 2).expect("what a took is free again");
        drop(other);
        limit.take("a", 5).expect("a part is free again");
    }

    #[test]
    fn what_is_refused_takes_nothing() {
        let limit = SharedLimit::new(4, LargestShare::ALL);
        let other = limit.take("a", 3).expect("room");
        limit.take("b", 2).expect_err("one is left");
        let mut taken = limit.take("b", 1).expect("one is left");
        assert!(!taken.grow(1), "nothing is left");
        drop(other);
        assert!(taken.grow(3) && !taken.grow(1));
        limit.take("a", 1).expect_err("nothing is left");
        drop(taken);
        assert_eq!(limit.take("a", usize::MAX).expect_err("too many").free, 4);
    }

    #[test]
    fn sharers_that_hold_nothing_are_forgotten() {
        let limit = SharedLimit::new(100_000, LargestShare::ALL);
        let held: Vec<_> = (0..100).map(|n| limit.take(&format!("held {n}"), 1)).collect();
        for number in 0..10_000 {
            limit.take(&number.to_string(), 1).expect("room");
            assert!(
                limit.sharers.lock().expect("no panic").limits.len() <= 2 * held.len() + SWEPT_MIN
            );
        }
        assert_eq!(limit.all.free(), 100_000 - held.len());
        assert!(limit.sharers.lock().expect("no panic").limits.contains_key("held 7"));
    }
}
