//! Removes copies of blocks.

use crate::holder::Place;
use crate::rank::RankChange;
use crate::record::{Announcement, Change, Record};
use crate::slots::Slot;
use crate::table::index_u32;
use kvasir_proto::types::{BlockCounts, BlockName, BlockOutcome, Tier};

/// Number of names whose slots are prefetched together.
const TOUCHED_NAMES: usize = 32;

impl RankChange<'_> {
    /// Removes one copy of each name from a source and tier.
    pub(crate) fn remove(&mut self, by: Announcement, names: &[BlockName]) -> BlockCounts {
        let mut counts = BlockCounts::default();
        for part in names.chunks(TOUCHED_NAMES) {
            if part.len() > 1 {
                self.trie.touch_names(part.iter().copied());
            }
            let mut rest = part;
            let mut touched = false;
            while let Some(&name) = rest.first() {
                let done = match self.holder.place(self.trie, name) {
                    Place::Unknown => {
                        counts.noop += 1;
                        1
                    }
                    Place::Plain(slot) => self.remove_plain(by, slot, rest, &mut counts),
                    Place::Recorded => {
                        counts.add(self.remove_recorded(by, name));
                        1
                    }
                    Place::Bit(at) => {
                        counts.add(self.withdraw_bit(by, at));
                        1
                    }
                };
                rest = rest.get(done..).unwrap_or_default();
                // Names of one run are found by adjacency; only others are prefetched.
                if done == 1 && !touched {
                    self.trie.touch_slots(rest);
                    touched = true;
                }
            }
        }
        counts
    }

    /// Removes a plain name, and the following names as far as they continue along its segment, in either
    /// direction. Returns the number of names removed.
    fn remove_plain(
        &mut self,
        by: Announcement,
        slot: Slot,
        names: &[BlockName],
        counts: &mut BlockCounts,
    ) -> usize {
        let holder = self.holder.index();
        if !self.holder.is_primary(by.source) || !self.trie.holds(slot, holder, by.tier) {
            counts.noop += 1;
            return 1;
        }
        let segment = self.trie.segment_of(slot);
        let head = segment.head;
        let tail = segment.tail();
        // An engine evicts a chain from its last block or from its first, so the names may continue in either
        // direction.
        let down = self.plain_run((head..slot).rev(), names);
        let up = if down == 0 { self.plain_run(slot + 1..=tail, names) } else { 0 };
        let len = 1 + down + up;
        self.drop_plain(by, slot - down, len);
        counts.applied += u64::from(len);
        let done = len as usize;
        self.holder.note_changed_plain(names.iter().take(done).copied());
        done
    }

    /// Number of `slots` that are plain and whose own names equal the names after the first.
    fn plain_run(&self, slots: impl Iterator<Item = Slot>, names: &[BlockName]) -> u32 {
        let is_next = |&(slot, &name): &(Slot, &BlockName)| {
            self.trie.slots.name(slot) == name
                && self.trie.slots.is_named(slot)
                && !self.holder.is_recorded(slot)
                && !self.holder.records().contains(name)
        };
        index_u32(slots.zip(names.iter().skip(1)).take_while(is_next).count())
    }

    /// Drops one tier of consecutive plain slots of one segment.
    pub(crate) fn drop_plain(&mut self, by: Announcement, slot: Slot, len: u32) {
        let holder = self.holder.index();
        let in_others =
            Tier::ALL.iter().any(|&tier| tier != by.tier && self.trie.holds(slot, holder, tier));
        self.lose_run(by.source, by.tier, slot, len);
        if !in_others {
            self.holder.convert_bits(self.trie, slot, len);
        }
        self.trie.remove_holder(slot, len, holder, by.tier);
        self.holder.drop_plain(self.trie, slot, len, !in_others);
    }

    /// Removes one copy from the record of a name. `Noop` if the source has no copy in the tier.
    fn remove_recorded(&mut self, by: Announcement, name: BlockName) -> BlockOutcome {
        let withdraw = |record: &mut Record| {
            (record.withdraw(by), record.slot, record.copies.is_empty(), record.local)
        };
        let withdrawn = self.holder.records_mut().change(name, withdraw);
        let Some((change, slot, is_gone, local)) = withdrawn else { return BlockOutcome::Noop };
        if change == Change::None {
            return BlockOutcome::Noop;
        }
        if change == Change::Key {
            self.record_loss(by.source, by.tier, (name, local));
        }
        self.after_withdrawal(name, slot, is_gone);
        BlockOutcome::Applied
    }

    /// Updates slot and record after a record lost copies.
    pub(crate) fn after_withdrawal(&mut self, name: BlockName, slot: Option<Slot>, is_gone: bool) {
        self.holder.note_changed(name);
        if is_gone {
            self.holder.records_mut().remove(name);
        }
        if let Some(slot) = slot {
            self.update_slot(slot);
        }
    }
}
