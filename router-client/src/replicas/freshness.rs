use crate::overlap::Overlap;
use kvasir_proto::types::SourceState;
use std::cmp::Reverse;
use std::time::Duration;

/// Batches by which a replica may lag behind the best one and still count as fresh: they are in transit.
const LAG_TOLERANCE_BATCHES: u64 = 64;
/// How much older a replica's last verification may be than the best one's. Servers verify every 30 s by default.
const AGE_TOLERANCE: Duration = Duration::from_secs(60);

/// How fresh a replica's data is, from an answer that lists every worker. Less is better.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Freshness {
    /// Ranks whose state is exact.
    exact: Reverse<usize>,
    /// Batches that the replica has seen announced but not applied, over all ranks.
    lag_batches: u64,
    /// Age of the last verification, at the rank where it is oldest.
    oldest: Duration,
}

impl Freshness {
    /// Freshness of a replica without workers.
    pub(crate) const NOTHING: Self =
        Self { exact: Reverse(0), lag_batches: 0, oldest: Duration::ZERO };

    /// Freshness from an answer that lists every worker.
    pub(crate) fn from_overlaps(overlaps: &[Overlap]) -> Self {
        let exact = overlaps.iter().filter(|at| at.state == SourceState::Exact);
        Self {
            exact: Reverse(exact.clone().count()),
            lag_batches: overlaps.iter().fold(0, |lag, at| at.lag_batches.saturating_add(lag)),
            oldest: exact.filter_map(|at| at.verified_age).max().unwrap_or_default(),
        }
    }

    /// Whether this replica is as good as the best one, apart from batches in transit.
    pub(super) fn keeps_up_with(&self, best: &Self) -> bool {
        self.exact == best.exact
            && self.lag_batches <= best.lag_batches.saturating_add(LAG_TOLERANCE_BATCHES)
            && self.oldest <= best.oldest + AGE_TOLERANCE
    }
}

/// The freshest of all replicas.
pub(super) fn best(all: impl Iterator<Item = Freshness>) -> Option<Freshness> {
    all.min()
}

#[cfg(test)]
impl Freshness {
    /// Freshness of a replica with this number of exact ranks.
    pub(super) const fn of_ranks(exact: usize) -> Self {
        Self { exact: Reverse(exact), ..Self::NOTHING }
    }
}
