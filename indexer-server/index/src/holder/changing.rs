//! Transitions of a rank's slots: adding, releasing, and changing between plain and recorded.

use super::Holder;
use crate::record::Copies;
use crate::slots::Slot;
use crate::trie::Trie;
use kvasir_proto::types::{BlockName, Tier};

impl Holder {
    /// Counts consecutive slots that the rank now holds.
    pub(crate) fn add_held(&mut self, slot: Slot, len: u32) {
        self.held.add(slot, len);
    }

    /// Counts consecutive slots that the rank now holds plainly, announced in `tier`.
    pub(crate) fn add_plain(&mut self, slot: Slot, len: u32, tier: Tier) {
        self.held.add(slot, len);
        self.changes.note_slots(slot, len);
        self.confirm(slot, len, tier);
    }

    /// Records that the trie dropped one tier of consecutive plain slots of one segment. `released`: it was
    /// the last tier.
    pub(crate) fn drop_plain(&mut self, trie: &Trie, slot: Slot, len: u32, released: bool) {
        self.changes.note_slots(slot, len);
        if released {
            self.held.remove(slot, len);
            self.note_released(trie, slot + len - 1);
        }
    }

    /// Notes for the next image that the rank released a slot. If the slot is still in use, the rank may hold
    /// a block below it.
    fn note_released(&mut self, trie: &Trie, slot: Slot) {
        if trie.slots.is_used(slot) {
            self.changes.note_released(slot);
        }
    }

    /// Converts a plain slot to a record, so that it can change further.
    pub(crate) fn spell_out(&mut self, trie: &Trie, slot: Slot, epoch: u32) {
        debug_assert!(self.is_plain(trie, slot), "slot {slot} is plain");
        let record = self.plain_record(trie, slot, epoch);
        let name = trie.slots.name(slot);
        self.records.spell_out(name, slot, record);
        self.changes.note_slots(slot, 1);
        self.changes.note_name(name);
    }

    /// Updates the trie from the records of a slot that is not plain. Makes the slot plain again if the
    /// records permit it. `epoch` is the primary source's loss epoch.
    pub(crate) fn update_slot(&mut self, trie: &mut Trie, slot: Slot, epoch: u32) {
        let names = self.records.prune_slot(slot);
        let held = |tier| {
            names.iter().any(|&name| self.records.get(name).is_some_and(|at| at.is_in(tier)))
        };
        let tiers = Tier::ALL.map(|tier| (tier, held(tier)));
        let any = tiers.iter().any(|&(_, held)| held);
        let was_held = trie.holds_any(slot, self.index);
        match (was_held, any) {
            (false, true) => self.held.add(slot, 1),
            (true, false) => {
                self.convert_bits(trie, slot, 1);
                self.held.remove(slot, 1);
            }
            _ => {}
        }
        // Add tiers first, so that the slot always has a holder.
        for (tier, _) in tiers.iter().filter(|(_, held)| *held) {
            trie.add_holder(slot, 1, self.index, *tier);
        }
        for (tier, _) in tiers.iter().filter(|(_, held)| !held) {
            if trie.slots.is_used(slot) && trie.holds(slot, self.index, *tier) {
                trie.remove_holder(slot, 1, self.index, *tier);
            }
        }
        if was_held && !any {
            self.note_released(trie, slot);
        }
        if let [name] = names.as_slice() {
            self.make_plain(trie, slot, *name, epoch);
        }
    }

    /// Drops the record of a slot's only name, if the trie alone expresses it: own name and parent match, and every
    /// copy is a current, single copy of the primary source.
    fn make_plain(&mut self, trie: &Trie, slot: Slot, name: BlockName, epoch: u32) {
        let Some(record) = self.records.get(name) else {
            return;
        };
        let ordinary =
            |at: &Copies| Some(at.source) == self.primary && at.count == 1 && at.epoch == epoch;
        let plain = trie.slots.is_named(slot)
            && trie.slots.name(slot) == name
            && record.parent == trie.parent_name(slot)
            && record.copies.iter().all(ordinary);
        if plain {
            self.records.make_plain(name, slot);
            Tier::ALL.iter().for_each(|&tier| self.confirm(slot, 1, tier));
            self.changes.note_slots(slot, 1);
            self.changes.note_name(name);
        }
    }

    /// Notes changed plain names for the running dumps.
    pub(crate) fn note_changed_plain(&mut self, names: impl Iterator<Item = BlockName>) {
        if !self.dumps.is_empty() {
            names.for_each(|name| self.dumps.note_changed(name));
        }
    }

    /// Notes a changed name with a record, for the running dumps and the next image.
    pub(crate) fn note_changed(&mut self, name: BlockName) {
        self.dumps.note_changed(name);
        self.changes.note_name(name);
    }
}
