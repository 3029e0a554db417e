use crate::Overlap;
use kvasir_proto::types::SourceState;
use std::cmp::Reverse;
use std::time::Duration;

/// Batches by which a replica may lag behind another and still count as fresh: they are in transit.
const LAG_TOLERANCE_BATCHES: u64 = 64;
/// How much older its last verification may be than another's: servers verify every 30 s by default.
const AGE_TOLERANCE: Duration = Duration::from_secs(60);

/// How much a replica knows, from an answer that lists every worker. Less is better.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Freshness {
    /// Ranks whose state is exact.
    exact: Reverse<usize>,
    /// Batches that it knows of and has not applied, over all ranks.
    lag_batches: u64,
    /// Age of its last verification, at the rank where it is oldest.
    oldest: Duration,
}

impl Freshness {
    /// Of a replica that knows no worker.
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

    /// Whether it is as good as the best, apart from what is in transit.
    pub(super) fn keeps_up_with(&self, best: &Self) -> bool {
        self.exact == best.exact
            && self.lag_batches <= best.lag_batches.saturating_add(LAG_TOLERANCE_BATCHES)
            && self.oldest <= best.oldest + AGE_TOLERANCE
    }
}

/// The freshest.
pub(super) fn best(all: impl Iterator<Item = Freshness>) -> Option<Freshness> {
    all.min()
}

#[cfg(test)]
impl Freshness {
    /// Of a replica with that many exact ranks.
    pub(super) const fn of_ranks(exact: usize) -> Self {
        Self { exact: Reverse(exact), ..Self::NOTHING }
    }
}
