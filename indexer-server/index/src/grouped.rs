//! Stores the blocks of further KV-cache groups. They have no position of their own: their names lead to one.

use crate::rank::RankChange;
use crate::record::{Announcement, Record};
use kvasir_proto::types::{BlockCounts, BlockName, BlockOutcome, Group, StoredBlock};
use smallvec::SmallVec;

impl RankChange<'_> {
    /// Stores blocks of a further group, or declarations of groups. Each block lies directly before the next one, if
    /// it is smaller than a block of the main group.
    pub(crate) fn store_grouped(
        &mut self,
        by: Announcement,
        parent: Option<BlockName>,
        blocks: &[StoredBlock],
    ) -> BlockCounts {
        let mut counts = BlockCounts::default();
        let mut before = parent;
        for &block in blocks {
            counts.add(if Group::is_mark(block.local) {
                self.store_one_grouped(by, before, block)
            } else {
                BlockOutcome::Rejected
            });
            before = Some(block.name);
        }
        counts
    }

    fn store_one_grouped(
        &mut self,
        by: Announcement,
        before: Option<BlockName>,
        block: StoredBlock,
    ) -> BlockOutcome {
        let StoredBlock { name, local } = block;
        let records = self.holder.records_mut();
        let known = records.get(name).map(|at| (at.is_grouped(), at.slot, at.local, at.parent));
        match known {
            Some((true, _, _, parent)) => {
                if before.is_some() && before != parent {
                    records.change(name, |record| record.parent = before);
                    self.holder.note_changed(name);
                }
                self.announce_recorded(by, name)
            }
            // A connector announced the name before the engine stated its group.
            Some((false, None, known, _)) => {
                records.regroup(block, before);
                self.relabel(block, known);
                self.holder.note_changed(name);
                self.announce_recorded(by, name)
            }
            // Only a collision of hashes.
            Some(_) => BlockOutcome::Rejected,
            None => {
                let local = Some(local);
                let mut record =
                    Record { parent: before, local, slot: None, copies: SmallVec::new() };
                record.announce(by);
                records.insert_grouped(name, record);
                self.record_gain(by.source, by.tier, (name, local));
                self.holder.note_changed(name);
                BlockOutcome::Applied
            }
        }
    }
}
