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
        self.put_record(by, parent, StoredBlock { name, local }, 1);
        self.holder.touch(name);
    }
}
