//! Limits that all tenants, or all callers, share, and of which each may take a part.

use crate::net::{Limit, Share};
use prometheus_client::metrics::gauge::Gauge;
use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
};

/// Sharers after whose number the idle ones are looked for the first time.
const SWEPT_MIN: usize = 64;

/// The largest part of a shared limit that one sharer may take, in thousandths.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct LargestShare(u16);

impl LargestShare {
    /// One may take everything.
    pub const ALL: Self = Self(1_000);
    /// One may take half.
    pub const HALF: Self = Self(500);

    /// A share of 0.001 to 1, rounded down to thousandths. None for other numbers.
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

    /// That part of a limit, at least 1.
    const fn of(self, max: usize) -> usize {
        let part = max / 1_000 * self.0 as usize + max % 1_000 * self.0 as usize / 1_000;
        if part == 0 { 1 } else { part }
    }
}

/// A limit that is shared.
#[derive(Debug)]
pub struct SharedLimit {
    all: Limit,
    share_max: usize,
    sharers: Mutex<Sharers>,
}

#[derive(Debug, Default)]
struct Sharers {
    limits: HashMap<Box<str>, Limit>,
    /// Number of them at which the idle ones are dropped.
    swept_at: usize,
}

/// What one sharer has taken of a limit: it is given back when this is dropped.
#[derive(Debug)]
pub struct TakenShare {
    of_all: Share,
    of_sharer: Share,
}

/// A limit leaves too little.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Exhausted {
    /// What may still be taken.
    pub free: usize,
    /// The limit.
    pub max: usize,
    /// Whether it is the sharer's own, and not that of all together.
    pub is_share: bool,
}

impl SharedLimit {
    /// A limit of which nothing is taken yet.
    #[must_use]
    pub fn new(max: usize, share: LargestShare) -> Self {
        let all = Limit::new(max, Gauge::default());
        Self { all, share_max: share.of(max), sharers: Mutex::default() }
    }

    /// Takes so much for one of those who share it, by name: a tenant, or a caller.
    ///
    /// # Errors
    /// If its part leaves less, or the whole limit does.
    pub fn take(&self, sharer: &str, count: usize) -> Result<TakenShare, Exhausted> {
        // Nothing panics while it holds the lock. It is held so that no limit is dropped before something is taken of it.
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
    /// Takes more. Returns false, and takes nothing, if the limits leave less.
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
            assert_eq!(share(part).of(max), of, "{part} of {max}");
        }
        assert_eq!(LargestShare::ALL.of(usize::MAX), usize::MAX);
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
