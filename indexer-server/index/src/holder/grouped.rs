//! Blocks of further groups at a rank: as bits where the rank holds a slot with the same name, else as records.

use super::Holder;
use crate::bits::{BitBlock, BitKind};
use crate::record::{Copies, Record};
use crate::slots::{NONE, Slot};
use crate::trie::Trie;
use kvasir_proto::types::{BlockName, Group, TierSet};
use std::borrow::Cow;

// === reading ===

impl Holder {
    /// The record of a name: of the main group, parked, or of a further group. `None` for plain names.
    pub(crate) fn record(&self, trie: &Trie, name: BlockName) -> Option<Cow<'_, Record>> {
        let spelled = self.records.get(name);
        spelled.or_else(|| Some(Cow::Owned(self.record_of_bit(trie, self.find_bit(trie, name)?))))
    }

    /// The block of a further group that has this name and a bit. A name does not state its group, so this tries all groups.
    pub(crate) fn find_bit(&self, trie: &Trie, name: BlockName) -> Option<BitBlock> {
        self.bits.groups().iter().find_map(|&group| self.find_bit_in(trie, group, name))
    }

    /// The block of this group that has this name and a bit.
    pub(crate) fn find_bit_in(&self, trie: &Trie, group: u8, name: BlockName) -> Option<BitBlock> {
        if self.bits.is_empty() {
            return None;
        }
        self.bits.find(group, self.slot_of_grouped(trie, group, name)?)
    }

    /// The slot whose own name is the engine's name of a further group's block.
    fn slot_of_grouped(&self, trie: &Trie, group: u8, name: BlockName) -> Option<Slot> {
        let engine_name = Group::name(group.into(), name);
        let last = self.last_bit.filter(|last| last.kind.group == group).map_or(NONE, |at| at.slot);
        let near = [last.wrapping_add(1), last.wrapping_sub(1), last];
        let near = near.into_iter().find(|&slot| trie.is_named(slot, engine_name));
        near.or_else(|| trie.named(engine_name))
    }

    /// The name of a block that has a bit.
    pub(crate) fn name_of_bit(trie: &Trie, block: BitBlock) -> BlockName {
        Group::name(block.kind.group.into(), trie.slots.name(block.slot))
    }

    /// As [`grouped_in`](crate::records::Records::grouped_in), for blocks with a bit, too.
    pub(crate) fn grouped_in(
        &self,
        trie: &Trie,
        group: u8,
        name: BlockName,
        tiers: TierSet,
    ) -> Option<(bool, Option<BlockName>)> {
        let of_bit = || {
            let block = self.find_bit_in(trie, group, name)?;
            Some((tiers.contains(block.kind.tier), Self::parent_of_bit(trie, block)))
        };
        self.records.grouped_in(name, tiers).or_else(of_bit)
    }

    /// The parent of a block that has a bit, as announced.
    pub(crate) fn parent_of_bit(trie: &Trie, block: BitBlock) -> Option<BlockName> {
        let parent = trie.parent_name(block.slot).filter(|_| block.kind.has_parent)?;
        Some(Group::name(block.kind.group.into(), parent))
    }

    /// The record equivalent to a bit.
    pub(crate) fn record_of_bit(&self, trie: &Trie, block: BitBlock) -> Record {
        let BitKind { tier, epoch, .. } = block.kind;
        let copies = self.primary.map(|source| Copies { source, tier, count: 1, epoch });
        Record {
            parent: Self::parent_of_bit(trie, block),
            local: Some(block.local()),
            slot: None,
            copies: copies.into_iter().collect(),
        }
    }

    /// Whether a name has no slot: it is parked, or belongs to a further group.
    pub(crate) fn has_no_slot(&self, trie: &Trie, name: BlockName) -> bool {
        self.record(trie, name).is_some_and(|record| record.slot.is_none())
    }
}

// === changing ===

impl Holder {
    /// Adds a block of a further group: as a bit if the rank holds a slot with its name and the bit expresses the record.
    pub(crate) fn add_grouped(&mut self, trie: &Trie, name: BlockName, record: Record) {
        let block = self.bit_of_record(trie, name, &record);
        if block.is_some_and(|block| self.set_bit(block)) {
            return;
        }
        self.records.insert_grouped(name, record);
    }

    /// Sets the bit of a block. Returns `false` if there are too many kinds of blocks.
    pub(crate) fn set_bit(&mut self, block: BitBlock) -> bool {
        self.last_bit = Some(block);
        self.bits.add(block)
    }

    /// The block with a bit that is equivalent to a record; `None` if the record cannot be replaced.
    fn bit_of_record(&self, trie: &Trie, name: BlockName, record: &Record) -> Option<BitBlock> {
        let group = Group::number_of(record.local?)?;
        let &[Copies { source, tier, count: 1, epoch }] = record.copies.as_slice() else {
            return None;
        };
        let slot = self.slot_of_grouped(trie, group, name)?;
        if !self.is_primary(source) || !trie.holds_any(slot, self.index) {
            return None;
        }
        // First blocks of prompts have no parent either way, and fewer kinds make lookups faster.
        let has_parent = record.parent.is_some() || trie.parent_name(slot).is_none();
        let kind = BitKind { group, tier, epoch, has_parent };
        let block = BitBlock { slot, kind };
        (Self::parent_of_bit(trie, block) == record.parent).then_some(block)
    }

    /// Clears the bit of a block.
    pub(crate) fn clear_bit(&mut self, block: BitBlock) {
        self.last_bit = Some(block);
        let was_set = self.bits.remove(block);
        debug_assert!(was_set, "{block:?} has a bit");
    }

    /// Sets the loss epoch of a block that has a bit.
    pub(crate) fn raise_epoch(&mut self, trie: &Trie, block: BitBlock, epoch: u32) {
        let again = BitBlock { kind: BitKind { epoch, ..block.kind }, ..block };
        self.clear_bit(block);
        if !self.set_bit(again) {
            let record = self.record_of_bit(trie, again);
            self.records.insert_grouped(Self::name_of_bit(trie, again), record);
        }
    }

    /// Replaces the bit of a name, if it has one, by a record, so that the record can change.
    pub(crate) fn convert_bit(&mut self, trie: &Trie, name: BlockName) {
        if let Some(block) = self.find_bit(trie, name) {
            let record = self.record_of_bit(trie, block);
            self.clear_bit(block);
            self.records.insert_grouped(name, record);
        }
    }

    /// Removes the bits of consecutive slots.
    pub(crate) fn take_bits(&mut self, slot: Slot, len: u32) -> Vec<BitBlock> {
        self.bits.take_run(slot, len)
    }

    /// Replaces the bits of consecutive slots by records, because the rank is about to release the slots.
    pub(crate) fn convert_bits(&mut self, trie: &Trie, slot: Slot, len: u32) {
        for block in self.bits.take_run(slot, len) {
            let record = self.record_of_bit(trie, block);
            self.records.insert_grouped(Self::name_of_bit(trie, block), record);
        }
    }
}
