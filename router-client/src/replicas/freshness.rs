use crate::Overlap;
use kvasir_proto::types::SourceState;
use std::cmp::Reverse;
use std::time::Duration;

/// Batches that a replica may be behind another and count as fresh: they are on their way.
const LAG_TOLERANCE_BATCHES: u64 = 64;
/// How much longer ago it may have seen that there is nothing newer: servers look for that every half
/// a minute by default.
const AGE_TOLERANCE: Duration = Duration::from_secs(60);

/// How much a replica knows, from an answer that lists every worker. Less is better.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Freshness {
    /// Ranks of which it has everything.
    exact: Reverse<usize>,
    /// Batches that it knows of and has not applied, over all ranks.
    lag_batches: u64,
    /// How long ago it last saw that there is nothing newer, at the rank where that is longest ago.
    oldest: Duration,
}

impl Freshness {
    /// Of one that knows no worker at all.
    pub(crate) const NOTHING: Self =
        Self { exact: Reverse(0), lag_batches: 0, oldest: Duration::ZERO };

    /// Of an answer that lists every worker.
    pub(crate) fn of(overlaps: &[Overlap]) -> Self {
        let exact = overlaps.iter().filter(|at| at.state == SourceState::Exact);
        Self {
            exact: Reverse(exact.clone().count()),
            lag_batches: overlaps.iter().fold(0, |lag, at| at.lag_batches.saturating_add(lag)),
            oldest: exact.filter_map(|at| at.verified_age).max().unwrap_or_default(),
        }
    }

    /// Whether it is as good as the best, but for what is on its way.
    pub(super) fn keeps_up_with(&self, best: &Self) -> bool {
        self.exact == best.exact
            && self.lag_batches <= best.lag_batches.saturating_add(LAG_TOLERANCE_BATCHES)
            && self.oldest <= best.oldest + AGE_TOLERANCE
    }
}

/// The best of some.
pub(super) fn best(all: impl Iterator<Item = Freshness>) -> Option<Freshness> {
    all.min()
}

#[cfg(test)]
impl Freshness {
    /// Of one that has so many ranks exactly.
    pub(super) const fn of_ranks(exact: usize) -> Self {
        Self { exact: Reverse(exact), ..Self::NOTHING }
    }
}
