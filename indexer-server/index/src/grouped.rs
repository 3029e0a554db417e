//! Stores and removes the blocks of further KV-cache groups. Such a block has no position. Its name is derived from the
//! name of the main group's block that ends at the same token.

use crate::bits::BitBlock;
use crate::holder::Holder;
use crate::rank::RankChange;
use crate::record::{Announcement, Record};
use kvasir_proto::types::{BlockCounts, BlockName, BlockOutcome, CopyMode, Group, StoredBlock};
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
        let group = Group::number_of(local);
        if let Some(at) = group.and_then(|group| self.holder.find_bit_in(self.trie, group, name)) {
            return self.announce_bit(by, before, at);
        }
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
                self.holder.add_grouped(self.trie, name, record);
                self.record_gain(by.source, by.tier, (name, local));
                self.holder.note_changed(name);
                BlockOutcome::Applied
            }
        }
    }

    /// Adds an announcement of a block that has a bit. `before` is the announced parent.
    pub(crate) fn announce_bit(
        &mut self,
        by: Announcement,
        before: Option<BlockName>,
        at: BitBlock,
    ) -> BlockOutcome {
        let name = Holder::name_of_bit(self.trie, at);
        let has_same_parent = before.is_none() || before == Holder::parent_of_bit(self.trie, at);
        let is_same = self.holder.is_primary(by.source) && at.kind.tier == by.tier;
        if is_same && has_same_parent {
            if at.kind.epoch < by.epoch {
                self.holder.raise_epoch(self.trie, at, by.epoch);
                self.holder.note_changed(name);
                return BlockOutcome::Applied;
            }
            if by.mode == CopyMode::Set {
                return BlockOutcome::Noop;
            }
        }
        self.holder.convert_bit(self.trie, name);
        if !has_same_parent {
            self.holder.records_mut().change(name, |record| record.parent = before);
            self.holder.note_changed(name);
        }
        self.announce_recorded(by, name)
    }

    /// Removes the copy of a block that has a bit.
    pub(crate) fn withdraw_bit(&mut self, by: Announcement, at: BitBlock) -> BlockOutcome {
        if !self.holder.is_primary(by.source) || at.kind.tier != by.tier {
            return BlockOutcome::Noop;
        }
        let name = Holder::name_of_bit(self.trie, at);
        self.holder.clear_bit(at);
        self.record_loss(by.source, by.tier, (name, Some(at.local())));
        self.holder.note_changed(name);
        BlockOutcome::Applied
    }
}

#[cfg(test)]
#[path = "grouped_test.rs"]
mod grouped_test;
