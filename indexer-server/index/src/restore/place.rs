//! Places the saved blocks of a rank in the index.

use crate::holder::Place;
use crate::image::{NameImage, RunImage};
use crate::rank::RankChange;
use crate::record::{Announcement, Copies, Record};
use crate::slots::{NONE, Slot};
use crate::source::{Source, SourceId};
use crate::trie::NewRun;
use kvasir_proto::types::{BlockName, CopyMode, LocalHash, StoredBlock, Tier, TierSet};
use smallvec::SmallVec;

/// Source ids in the images, and the corresponding ids in the index.
pub(super) type SourceIds = SmallVec<[(SourceId, SourceId); 2]>;

/// Current slots of an item's blocks.
#[derive(Debug, Default)]
pub(super) struct Landed {
    /// First slot and number of blocks for each run of consecutive slots, in order.
    stretches: SmallVec<[(Slot, u32); 1]>,
}

impl Landed {
    pub(super) fn at(slot: Slot) -> Self {
        Self { stretches: SmallVec::from_elem((slot, 1), 1) }
    }

    fn push(&mut self, slot: Slot, len: u32) {
        match self.stretches.last_mut() {
            Some((first, before)) if *first + *before == slot => *before += len,
            _ => self.stretches.push((slot, len)),
        }
    }

    /// Slot of the block at `offset`; `None` if it could not be placed.
    pub(super) fn slot(&self, offset: u32) -> Option<Slot> {
        let mut offset = offset;
        for &(first, len) in &self.stretches {
            if offset < len {
                return Some(first + offset);
            }
            offset -= len;
        }
        None
    }

    /// Number of placed blocks.
    pub(super) fn len(&self) -> usize {
        self.stretches.iter().map(|&(_, len)| len as usize).sum()
    }
}

impl RankChange<'_> {
    /// Places plain blocks below `at`, whose name was announced as `parent`. Stops at the first block that
    /// cannot be placed.
    pub(super) fn restore_run(
        &mut self,
        source: SourceId,
        at: Slot,
        parent: Option<BlockName>,
        run: &RunImage,
    ) -> Landed {
        let mut landed = Landed::default();
        let mut at = at;
        let mut parent = parent;
        while let Some(rest) = run.blocks.get(landed.len()..).filter(|rest| !rest.is_empty()) {
            let room = self.limits.chain_blocks_max.saturating_sub(self.trie.depth(at));
            let Some(&block) = rest.first().filter(|_| room > 0) else {
                break;
            };
            let rest = rest.get(..room).unwrap_or(rest);
            let (mut len, mut last) = self.restore_plain(source, run.tiers, at, parent, rest);
            if len == 0 {
                let record = self.record_of(source, run.tiers, parent, block.local);
                let Some(slot) = self.restore_name(at, block.name, block.name, record) else {
                    break;
                };
                (len, last) = (1, slot);
            }
            landed.push(last + 1 - len, len);
            parent = rest.get(len as usize - 1).map(|block| block.name);
            at = last;
        }
        landed
    }

    /// Places the leading blocks that can be plain again. Returns their number, and the slot of the last one.
    fn restore_plain(
        &mut self,
        source: SourceId,
        tiers: TierSet,
        at: Slot,
        parent: Option<BlockName>,
        blocks: &[StoredBlock],
    ) -> (u32, Slot) {
        let own_parent = (at != NONE).then(|| self.trie.slots.name(at));
        if !self.holder.is_primary(source) || parent != own_parent {
            return (0, at);
        }
        let mut tiers = Tier::ALL.into_iter().filter(|tier| tiers.contains(*tier));
        let Some(tier) = tiers.next() else {
            return (0, at);
        };
        let by = Announcement { source, tier, mode: CopyMode::Set, epoch: self.epoch_of(source) };
        let (len, last) = match self.join_run(by, at, blocks) {
            (0, _) => self.append_run(by, at, blocks),
            joined => joined,
        };
        if let Ok(len) = u32::try_from(len)
            && len > 0
        {
            for tier in tiers {
                self.trie.add_holder(last + 1 - len, len, self.holder.index(), tier);
                self.gain_run(source, tier, last + 1 - len, len);
            }
            return (len, last);
        }
        (0, at)
    }

    fn epoch_of(&self, source: SourceId) -> u32 {
        self.sources.get(&source).map_or(0, Source::epoch)
    }

    /// Builds the record of a block that was plain.
    pub(super) fn record_of(
        &self,
        source: SourceId,
        tiers: TierSet,
        parent: Option<BlockName>,
        local: LocalHash,
    ) -> Record {
        let epoch = self.epoch_of(source);
        let tiers = Tier::ALL.into_iter().filter(|tier| tiers.contains(*tier));
        let copies = tiers.map(|tier| Copies { source, tier, count: 1, epoch }).collect();
        Record { parent, local: Some(local), slot: None, copies }
    }

    /// Builds the record of a name in an image. Omits copies of sources without an image.
    pub(super) fn record_from(&self, image: &NameImage, ids: &SourceIds) -> Record {
        let mut record = Record {
            parent: image.parent,
            local: image.local,
            slot: None,
            copies: SmallVec::new(),
        };
        for &(old, by_tier) in &image.copies {
            let Some(&(_, source)) = ids.iter().find(|(id, _)| *id == old) else {
                continue;
            };
            let epoch = self.epoch_of(source);
            for (tier, count) in Tier::ALL.into_iter().zip(by_tier).filter(|(_, count)| *count > 0)
            {
                if record.find(source, tier).is_none() {
                    record.copies.push(Copies { source, tier, count, epoch });
                }
            }
        }
        record
    }

    /// Whether a name is new to the rank and has copies.
    fn is_restorable(&self, name: BlockName, record: &Record) -> bool {
        !record.copies.is_empty() && self.holder.place(self.trie, name) == Place::Unknown
    }

    /// Places a name at the child of `at` with its content. Creates the position if necessary, with `own` as
    /// its own name. Returns `None` if the name already has another position, or a limit is reached.
    pub(super) fn restore_name(
        &mut self,
        at: Slot,
        own: BlockName,
        name: BlockName,
        record: Record,
    ) -> Option<Slot> {
        let local = record.local?;
        if !self.is_restorable(name, &record)
            || self.trie.depth(at) >= self.limits.chain_blocks_max
            || self.holder.has_all_names(self.trie, self.limits, at, local)
        {
            return None;
        }
        let slot = self.restore_hole(at, StoredBlock { name: own, local });
        self.spell_out(slot);
        for copies in &record.copies {
            self.record_gain(copies.source, copies.tier, (name, record.local));
        }
        self.holder.records_mut().insert_placed(name, slot, record);
        self.update_slot(slot);
        Some(slot)
    }

    /// The child of `at` with this content, created if necessary. No rank holds a new position: add the
    /// blocks below it immediately.
    pub(super) fn restore_hole(&mut self, at: Slot, block: StoredBlock) -> Slot {
        match self.trie.child(at, block.local) {
            Some(slot) => slot,
            None => self.trie.create(NewRun::unheld(at), block, 1),
        }
    }

    /// Parks a name, or adds a name of a further group. Returns `false` if it cannot be restored, or the limit is
    /// reached.
    pub(super) fn restore_parked(&mut self, name: BlockName, record: Record) -> bool {
        let is_grouped = record.is_grouped();
        let has_room = is_grouped || self.holder.parked() < self.limits.rank_parked_max;
        if !has_room || !self.is_restorable(name, &record) {
            return false;
        }
        for copies in &record.copies {
            self.record_gain(copies.source, copies.tier, (name, record.local));
        }
        let parent = record.parent;
        if is_grouped {
            self.holder.add_grouped(self.trie, name, record);
        } else {
            let records = self.holder.records_mut();
            records.insert_parked(name, record);
            records.wait(name, parent);
        }
        true
    }
}
