//! Placing what waited for its parent.

use crate::holder::Names;
use crate::index::RankChange;
use crate::record::Announcement;
use crate::slots::Slot;
use kvasir_proto::types::{BlockName, CopyMode, StoredBlock};

impl RankChange<'_> {
    /// Places everything that waited for a name that has just been placed.
    pub(crate) fn wake(&mut self, name: BlockName) {
        if self.holder.is_short() {
            // They may have been placed before, by a block that was not taken.
            return;
        }
        let mut placed = Names::from_elem(name, 1);
        while let Some(name) = placed.pop() {
            if self.holder.waiting.is_empty() {
                return;
            }
            let Some(slot) = self.holder.position(self.trie, name) else {
                continue;
            };
            if self.trie.depth(slot) >= self.limits.chain_blocks_max {
                continue;
            }
            for child in self.holder.waiting.remove(name).unwrap_or_default() {
                self.place_parked(slot, child);
                placed.push(child);
            }
        }
    }

    /// Drops a parked name that cannot be placed; who stored it lacks it from now on.
    pub(crate) fn refuse(&mut self, name: BlockName) {
        let copies = self.holder.records.get(name).map(|record| record.copies.clone());
        for copies in copies.unwrap_or_default() {
            if let Some(source) = self.sources.get_mut(&copies.source) {
                source.lacks_blocks();
            }
        }
        let placed = self.take_record(name);
        debug_assert!(placed.is_none(), "{name} is parked");
    }

    fn place_parked(&mut self, parent: Slot, name: BlockName) {
        let Some(record) = self.holder.records.get(name) else {
            return;
        };
        let (Some(local), Some(&copies)) = (record.local, record.copies.first()) else {
            return;
        };
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
        self.holder.touch(name);
    }
}
