//! Restores a journal that another process has left.

use super::{Batch, Journal, JournalConfig};
use kvasir_proto::types::{BlockName, DpRank, HeldBlock, Incarnation, Tier};
use std::sync::Arc;

/// Data on disk about an incarnation, besides records and batches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PersistedIncarnation {
    /// The incarnation.
    pub incarnation: Incarnation,
    /// Number of the incarnation's first batch.
    pub first: u64,
    /// Last batch that the records include; `None` before the first.
    pub watermark: Option<u64>,
}

impl Journal {
    /// Creates the journal of an incarnation that may continue. Restore all records of its watermark, then replay the
    /// batches on disk in order. The first batch is at most the one after the watermark.
    #[must_use]
    pub fn persisted(found: PersistedIncarnation, config: JournalConfig) -> Self {
        let PersistedIncarnation { incarnation, first, watermark } = found;
        let mut journal = Self::new(incarnation, first, config);
        if let Some(watermark) = watermark {
            journal.next = watermark.checked_add(1);
            journal.own_first = watermark.saturating_add(1);
        }
        journal
    }

    /// Restores a name. Later records of a name replace earlier ones.
    pub fn bring_back(&mut self, rank: DpRank, held: &HeldBlock) {
        self.inventory.bring_back(rank, held);
    }

    /// Marks a rank that may hold refused blocks.
    pub fn mark_incomplete(&mut self, rank: DpRank) {
        self.inventory.mark_incomplete(rank);
    }

    /// Replays a published batch.
    ///
    /// # Errors
    /// Returns the number of the expected batch, if `batch` is another.
    pub fn replay(&mut self, batch: Batch) -> Result<(), u64> {
        let sequence = batch.sequence();
        let is_new = self.next.is_some_and(|next| sequence >= next);
        let wanted = match self.ring.head() {
            Some(head) => head.saturating_add(1),
            // Any batch that the records include.
            None if is_new => self.next.unwrap_or(u64::MAX),
            None => sequence,
        };
        if sequence != wanted {
            return Err(wanted);
        }
        if is_new {
            for event in batch.events() {
                self.inventory.apply(batch.rank(), event);
            }
            self.next = sequence.checked_add(1);
            self.own_first = sequence.saturating_add(1);
        }
        self.ring.push(Arc::new(batch));
        Ok(())
    }

    /// Whether all held blocks satisfy a condition.
    #[must_use]
    pub fn all_held(&self, mut is_fine: impl FnMut(DpRank, BlockName, Tier) -> bool) -> bool {
        self.inventory.all_held(&mut is_fine)
    }

    /// Ranks with held blocks.
    #[must_use]
    pub fn ranks(&self) -> Vec<DpRank> {
        self.inventory.ranks()
    }
}
