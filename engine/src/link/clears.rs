//! Tracks which ranks were cleared after a loss of events. A loss may concern any rank of the source, so it
//! ends only when every rank has been cleared.

use kvasir_proto::limits::WORKER_RANKS_MAX;
use kvasir_proto::types::DpRank;
use std::collections::BTreeSet;

#[derive(Debug, Default)]
pub(super) struct Clears {
    /// Ranks with applied batches.
    ranks: BTreeSet<DpRank>,
    /// Ranks cleared since the last loss.
    cleared: BTreeSet<DpRank>,
    /// Whether the number of ranks exceeds the limit. A loss then ends only with a new incarnation.
    has_more: bool,
}

impl Clears {
    /// Creates the tracker of a source that feeds these ranks.
    pub(super) fn for_ranks(ranks: impl IntoIterator<Item = DpRank>) -> Self {
        Self { ranks: ranks.into_iter().collect(), ..Self::default() }
    }

    /// Records a loss of events.
    pub(super) fn lose(&mut self) {
        self.cleared.clear();
    }

    /// Records an applied batch of a rank. Returns whether it clears the last rank that was not yet cleared
    /// since the last loss.
    pub(super) fn record_batch(&mut self, rank: DpRank, has_clear: bool) -> bool {
        if self.ranks.len() >= WORKER_RANKS_MAX && !self.ranks.contains(&rank) {
            self.has_more = true;
            return false;
        }
        self.ranks.insert(rank);
        if has_clear {
            self.cleared.insert(rank);
        }
        has_clear && !self.has_more && self.ranks.is_subset(&self.cleared)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loss_is_over_when_all_ranks_were_cleared_since() {
        let mut clears = Clears::for_ranks([2]);
        assert!(!clears.record_batch(0, false));
        assert!(!clears.record_batch(0, true), "rank 2 holds something");
        assert!(clears.record_batch(2, true));
        assert!(clears.record_batch(0, true), "no loss since");
        clears.lose();
        assert!(!clears.record_batch(0, true), "something of rank 2 may be lost");
        assert!(!clears.record_batch(2, false));
        assert!(!clears.record_batch(1, false));
        assert!(!clears.record_batch(2, true));
        assert!(clears.record_batch(1, true));
        assert!(Clears::default().record_batch(0, true), "the only rank");
    }

    #[test]
    fn ranks_are_limited() {
        let ranks = 0..u32::try_from(WORKER_RANKS_MAX).expect("few");
        let mut clears = Clears::for_ranks(ranks.clone());
        ranks
            .clone()
            .for_each(|rank| assert_eq!(clears.record_batch(rank, true), rank + 1 == ranks.end));
        assert!(!clears.record_batch(u32::MAX, true));
        assert!(!clears.record_batch(0, true), "the last one is never known to be cleared");
        assert_eq!(clears.ranks.len(), WORKER_RANKS_MAX);
    }
}
