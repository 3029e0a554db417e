//! Removed events.

use crate::holder::Place;
use crate::index::RankChange;
use crate::record::{Announcement, Change};
use crate::slots::Slot;
use kvasir_proto::types::{BlockName, BlockOutcome};

impl RankChange<'_> {
    /// Takes one copy of a name away from a source and tier.
    pub(crate) fn remove(&mut self, by: Announcement, name: BlockName) -> BlockOutcome {
        match self.holder.place(self.trie, name) {
            Place::Unknown => BlockOutcome::Noop,
            Place::Plain(slot) => self.remove_plain(by, name, slot),
            Place::Recorded => self.remove_recorded(by, name),
        }
    }

    fn remove_plain(&mut self, by: Announcement, name: BlockName, slot: Slot) -> BlockOutcome {
        let holder = self.holder.index;
        if self.holder.primary != Some(by.source) || !self.trie.holds(slot, holder, by.tier) {
            return BlockOutcome::Noop;
        }
        self.drop_plain(by, slot, 1);
        self.holder.touch(name);
        BlockOutcome::Applied
    }

    /// Ends the holding of consecutive plain slots of one segment in one tier.
    pub(crate) fn drop_plain(&mut self, by: Announcement, slot: Slot, len: u32) {
        let holder = self.holder.index;
        let in_others = kvasir_proto::types::Tier::ALL
            .iter()
            .any(|&tier| tier != by.tier && self.trie.holds(slot, holder, tier));
        if !in_others {
            self.holder.let_go(slot, len);
        }
        self.trie.unhold(slot, len, holder, by.tier);
        self.drop_keys(by.source, u64::from(len));
    }

    fn remove_recorded(&mut self, by: Announcement, name: BlockName) -> BlockOutcome {
        let Some(record) = self.holder.records.get_mut(name) else {
            return BlockOutcome::Noop;
        };
        let change = record.withdraw(by);
        let (slot, parent, is_gone) = (record.slot, record.parent, record.copies.is_empty());
        if change == Change::None {
            return BlockOutcome::Noop;
        }
        if change == Change::Key {
            self.drop_keys(by.source, 1);
        }
        self.after_withdrawal(name, slot, parent, is_gone);
        BlockOutcome::Applied
    }

    /// Brings everything in line after a record lost copies.
    pub(crate) fn after_withdrawal(
        &mut self,
        name: BlockName,
        slot: Option<Slot>,
        parent: Option<BlockName>,
        is_gone: bool,
    ) {
        self.holder.touch(name);
        if is_gone {
            self.holder.records.remove(name);
            match slot {
                None => self.unpark(name, parent),
                Some(slot) => {
                    if let Some(names) = self.holder.slot_names.get_mut(slot) {
                        names.retain(|at| *at != name);
                    }
                }
            }
        }
        if let Some(slot) = slot {
            self.settle(slot);
        }
    }
}
