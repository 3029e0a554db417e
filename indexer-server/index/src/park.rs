//! Places names at positions, and parks names whose parent is not placed.

use crate::rank::RankChange;
use crate::record::{Announcement, Record};
use crate::records::Names;
use crate::slots::Slot;
use crate::trie::NewRun;
use kvasir_proto::types::{BlockName, BlockOutcome, CopyMode, StoredBlock};

impl RankChange<'_> {
    /// Adds a name at the child of `parent` with the content of `block`.
    pub(crate) fn place_record(
        &mut self,
        by: Announcement,
        parent: Slot,
        block: StoredBlock,
        mut record: Record,
        wanted: usize,
    ) {
        record.announce(by);
        self.record_gain(by.source, by.tier, (block.name, record.local));
        self.holder.records_mut().insert_parked(block.name, record);
        self.put_record(by, parent, block, wanted);
        self.holder.note_changed(block.name);
    }

    /// Places a parked record at the child of `parent` with the content of `block`.
    pub(crate) fn put_record(
        &mut self,
        by: Announcement,
        parent: Slot,
        block: StoredBlock,
        wanted: usize,
    ) {
        let slot = match self.trie.child(parent, block.local) {
            Some(slot) => {
                // If the rank holds the position plainly, the position now gets a second name.
                self.spell_out(slot);
                slot
            }
            None => {
                let new = NewRun::held(parent, self.holder.index(), by.tier);
                let slot = self.trie.create(new, block, wanted);
                self.holder.add_held(slot, 1);
                slot
            }
        };
        self.holder.records_mut().place(block.name, slot);
        self.update_slot(slot);
    }

    /// Adds a name without a position.
    pub(crate) fn park(
        &mut self,
        by: Announcement,
        name: BlockName,
        mut record: Record,
    ) -> BlockOutcome {
        if self.holder.parked() >= self.limits.rank_parked_max {
            return BlockOutcome::Rejected;
        }
        record.announce(by);
        self.record_gain(by.source, by.tier, (name, record.local));
        let parent = record.parent;
        let records = self.holder.records_mut();
        records.insert_parked(name, record);
        records.wait(name, parent);
        self.holder.note_changed(name);
        BlockOutcome::Applied
    }
}

// === waking ===

impl RankChange<'_> {
    /// Places all names that wait for a newly placed name.
    pub(crate) fn place_waiting(&mut self, name: BlockName) {
        if self.holder.is_short() {
            // If the rank had all its blocks, a rejected block might have placed the waiting names earlier.
            return;
        }
        // A placed name may place others that wait for it. The list replaces recursion.
        let mut placed = Names::from_elem(name, 1);
        while let Some(name) = placed.pop() {
            if !self.holder.records().has_waiting() {
                return;
            }
            let Some(slot) = self.holder.position(self.trie, name) else {
                continue;
            };
            if self.trie.depth(slot) >= self.limits.chain_blocks_max {
                // The waiting names would be too deep. They stay parked.
                continue;
            }
            for child in self.holder.records_mut().take_waiting(name) {
                self.place_parked(slot, child);
                placed.push(child);
            }
        }
    }

    /// Drops a parked name that cannot be placed. Its sources are incomplete from now on.
    pub(crate) fn refuse(&mut self, name: BlockName) {
        let copies = self.holder.records().get(name).map(|record| record.copies.clone());
        for copies in copies.unwrap_or_default() {
            if let Some(source) = self.sources.get_mut(&copies.source) {
                source.mark_incomplete();
            }
        }
        let placed = self.take_record(name);
        debug_assert!(placed.is_none(), "{name} is parked");
    }

    /// Places a parked name below its parent. A name without tokens stays parked. If the position has all names that
    /// it may have, the name is dropped.
    fn place_parked(&mut self, parent: Slot, name: BlockName) {
        let Some(record) = self.holder.records().get(name) else {
            return;
        };
        let (Some(local), Some(&copies)) = (record.local, record.copies.first()) else {
            return;
        };
        // One copy is enough to create the position. Its tiers then follow from all copies of the record.
        let by = Announcement {
            source: copies.source,
            tier: copies.tier,
            mode: CopyMode::Set,
            epoch: copies.epoch,
        };
        if self.holder.has_all_names(self.trie, self.limits, parent, local) {
            self.refuse(name);
            return;
        }
        self.put_record(by, parent, StoredBlock { name, local }, 1);
        self.holder.note_changed(name);
    }
}
