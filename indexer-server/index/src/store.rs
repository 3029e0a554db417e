//! Stores blocks.
//!
//! The two ordinary cases, a chain that is new to all ranks and a run of positions that others hold and this rank
//! joins, access only the trie, block by block. All other cases are decided on the record of the block's name.

use crate::contradicted::{Contradiction, Meaning};
use crate::holder::Place;
use crate::rank::RankChange;
use crate::record::{Announcement, Change, Record};
use crate::slots::{NONE, Slot};
use crate::trie::NewRun;
use kvasir_proto::types::{
    BlockCounts, BlockName, BlockOutcome, CopyMode, Group, StoredBlock, Tier,
};
use smallvec::SmallVec;

/// Position of the parent of the block to store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum At {
    /// This slot; [`NONE`] is the root.
    Slot(Slot),
    /// Unknown: the following blocks are parked.
    Unknown,
}

impl RankChange<'_> {
    /// Stores blocks, each the parent of the next.
    pub(crate) fn store(
        &mut self,
        by: Announcement,
        mut parent: Option<BlockName>,
        blocks: &[StoredBlock],
    ) -> BlockCounts {
        self.holder.adopt_source(by.source);
        if blocks.first().is_some_and(|first| Group::is_mark(first.local)) {
            return self.store_grouped(by, parent, blocks);
        }
        // Only a faulty publisher mixes the main group with others.
        let is_mixed = |block: &StoredBlock| Group::is_mark(block.local);
        let mut counts = BlockCounts::default();
        let mut at = parent.map_or(At::Slot(NONE), |name| self.position(name));
        let mut rest = blocks;
        while let Some((&block, tail)) = rest.split_first() {
            if let At::Slot(slot) = at {
                let room = self.limits.chain_blocks_max.saturating_sub(self.trie.depth(slot));
                let run = rest.get(..room).unwrap_or(rest);
                if run.is_empty() {
                    counts.rejected += rest.len() as u64;
                    self.reject_too_deep(parent, rest.split(is_mixed).next().unwrap_or_default());
                    break;
                }
                let (done, last) = self.store_ordinary(by, slot, parent, run);
                if done > 0 {
                    counts.applied += done as u64;
                    parent = rest.get(done - 1).map(|block| block.name);
                    rest = rest.get(done..).unwrap_or_default();
                    at = At::Slot(last);
                    self.holder.stored_at(last);
                    continue;
                }
            }
            if is_mixed(&block) {
                counts.rejected += rest.len() as u64;
                break;
            }
            let outcome = self.store_one(by, at, parent, block, rest.len());
            counts.add(outcome);
            at = match outcome {
                BlockOutcome::Rejected | BlockOutcome::Shed => At::Unknown,
                BlockOutcome::Applied | BlockOutcome::Noop | BlockOutcome::Conflict => {
                    self.position(block.name)
                }
            };
            parent = Some(block.name);
            rest = tail;
        }
        counts
    }

    fn position(&self, name: BlockName) -> At {
        self.holder.position(self.trie, name).map_or(At::Unknown, At::Slot)
    }

    /// Announces a name without tokens.
    pub(crate) fn store_name(&mut self, by: Announcement, name: BlockName) -> BlockOutcome {
        self.holder.adopt_source(by.source);
        match self.holder.place(self.trie, name) {
            Place::Plain(slot) => self.announce_plain(by, slot),
            Place::Recorded => self.announce_recorded(by, name),
            Place::Bit(at) => self.announce_bit(by, None, at),
            Place::Unknown if self.holder.is_short() => BlockOutcome::Shed,
            Place::Unknown => {
                let record =
                    Record { parent: None, local: None, slot: None, copies: SmallVec::new() };
                self.park(by, name, record)
            }
        }
    }
}

// === ordinary blocks ===

impl RankChange<'_> {
    /// Stores the leading blocks that are ordinary. Returns their number, and the slot of the last one. Ordinary blocks
    /// come from the rank's primary source, and continue the chain under the same parent name as the trie.
    fn store_ordinary(
        &mut self,
        by: Announcement,
        at: Slot,
        parent: Option<BlockName>,
        blocks: &[StoredBlock],
    ) -> (usize, Slot) {
        let own_parent = (at != NONE).then(|| self.trie.slots.name(at));
        if !self.holder.is_primary(by.source) || parent != own_parent {
            return (0, at);
        }
        let mut done = 0;
        let mut last = at;
        while let Some(rest) = blocks.get(done..).filter(|rest| !rest.is_empty()) {
            let (joined, slot) = self.join_run(by, last, rest);
            let (grown, slot) = self.append_run(by, slot, rest.get(joined..).unwrap_or_default());
            if joined + grown == 0 {
                break;
            }
            done += joined + grown;
            last = slot;
        }
        self.holder.note_changed_plain(blocks.iter().take(done).map(|block| block.name));
        (done, last)
    }

    /// Adds as many new positions and names below `at` as get consecutive slots. Returns their number and the last one.
    pub(crate) fn append_run(
        &mut self,
        by: Announcement,
        at: Slot,
        blocks: &[StoredBlock],
    ) -> (usize, Slot) {
        let exists = |first: &StoredBlock| self.trie.child(at, first.local).is_some();
        if blocks.first().is_none_or(exists) {
            return (0, at);
        }
        let new = NewRun::held(at, self.holder.index(), by.tier);
        let records = self.holder.records();
        let is_new = |at: &StoredBlock| !Group::is_mark(at.local) && records.is_fresh(at.name);
        let (first, len) = self.trie.create_run(new, blocks, is_new);
        if len == 0 {
            return (0, at);
        }
        self.gain_plain(by, first, len);
        (len as usize, first + len - 1)
    }

    /// Adds the rank as holder of existing positions below `at` that have exactly these names, at most to the
    /// end of one segment. Only positions that the rank does not hold yet. Returns the same as `append_run`.
    pub(crate) fn join_run(
        &mut self,
        by: Announcement,
        at: Slot,
        blocks: &[StoredBlock],
    ) -> (usize, Slot) {
        let first = blocks.first().and_then(|block| self.trie.child(at, block.local));
        let Some(first) = first.filter(|&first| !self.trie.holds_any(first, self.holder.index()))
        else {
            return (0, at);
        };
        let room = self.trie.segment_of(first).tail() - first + 1;
        let locals = self.trie.slots.locals(first, room);
        let names = self.trie.slots.names(first, room);
        let mut len = 0;
        for ((block, &local), &name) in blocks.iter().zip(locals).zip(names) {
            let joins = block.local.0 == local
                && block.name.0 == name
                && self.trie.slots.is_named(first + len)
                && self.holder.records().is_fresh(block.name);
            if !joins {
                break;
            }
            len += 1;
        }
        if len == 0 {
            return (0, at);
        }
        self.trie.add_holder(first, len, self.holder.index(), by.tier);
        self.gain_plain(by, first, len);
        (len as usize, first + len - 1)
    }

    /// Counts consecutive slots that this rank now holds plainly, and did not hold before.
    fn gain_plain(&mut self, by: Announcement, first: Slot, len: u32) {
        if self.holder.first_contradiction().is_some() {
            let names = (first..first + len).map(|slot| self.trie.slots.name(slot));
            names.for_each(|name| self.holder.forget_contradiction(name));
        }
        self.holder.add_plain(first, len, by.tier);
        self.gain_run(by.source, by.tier, first, len);
    }
}

// === any block ===

/// Relation of an announced block to the current content of its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Relation {
    /// The name is new.
    New,
    /// The content is equal, plain at this slot.
    SamePlain(Slot),
    /// The content is equal, in a record.
    SameRecord,
    /// The content differs.
    Conflict,
}

impl RankChange<'_> {
    /// Stores a block that is not ordinary: compares it with the present content of its name, then counts a copy,
    /// completes or moves the name, parks it, or rejects the block. `wanted` is the number of blocks left in the event.
    fn store_one(
        &mut self,
        by: Announcement,
        at: At,
        parent: Option<BlockName>,
        block: StoredBlock,
        wanted: usize,
    ) -> BlockOutcome {
        if at == At::Unknown && self.holder.is_short() {
            // Without the complete chain, neither the block's position is known nor whether its name still
            // has the same content.
            self.drop_for(Relation::Conflict, block.name);
            return BlockOutcome::Shed;
        }
        let relation = self.relation(at, parent, block);
        match relation {
            Relation::SamePlain(slot) => return self.announce_plain(by, slot),
            Relation::SameRecord => {
                // A parked name is completed if the store brings its position or its tokens. Any other store is one
                // more copy.
                let parked =
                    self.holder.records().get(block.name).is_some_and(|at| at.slot.is_none());
                let unread =
                    self.holder.records().get(block.name).is_some_and(|at| at.local.is_none());
                if !parked || (at == At::Unknown && !unread) {
                    return self.announce_recorded(by, block.name);
                }
                if self.has_all_names(at, block) {
                    self.refuse(block.name);
                    return BlockOutcome::Rejected;
                }
                return self.complete(by, at, parent, block);
            }
            // A hash covers its prefix. A store that contradicts the name's meaning is therefore a copy of
            // the held block, unless no copy of that block is certain any more.
            Relation::Conflict if self.keeps_meaning(block.name) => {
                let held = self.meaning(block.name);
                let announced = Meaning { parent, local: Some(block.local) };
                let contradiction = Contradiction { name: block.name, held, announced };
                self.holder.note_contradiction(contradiction);
                self.announce_copy(by, block.name);
                return BlockOutcome::Conflict;
            }
            Relation::New => self.holder.forget_contradiction(block.name),
            // No copy of the present content is certain: the announced content replaces it.
            Relation::Conflict => {}
        }
        let record =
            Record { parent, local: Some(block.local), slot: None, copies: SmallVec::new() };
        let slot = match at {
            At::Slot(_) if self.has_all_names(at, block) => {
                self.drop_for(relation, block.name);
                return BlockOutcome::Rejected;
            }
            At::Slot(slot) => slot,
            At::Unknown if self.holder.parked() >= self.limits.rank_parked_max => {
                self.drop_for(relation, block.name);
                return BlockOutcome::Rejected;
            }
            At::Unknown => {
                let outcome = self.drop_for(relation, block.name);
                self.park(by, block.name, record);
                return outcome;
            }
        };
        // Hold the new position before dropping the old one: they may share ancestors.
        if let Place::Plain(old) = self.holder.place(self.trie, block.name) {
            self.spell_out(old);
        }
        let old = self.take_record(block.name);
        self.place_record(by, slot, block, record, wanted);
        if let Some(old) = old {
            self.update_slot(old);
        }
        self.place_waiting(block.name);
        BlockOutcome::Applied
    }

    /// Whether a held name keeps its meaning if it is announced with another one.
    fn keeps_meaning(&self, name: BlockName) -> bool {
        !self.is_report && !self.holder.is_short() && self.is_certain(name)
    }

    /// Whether any copy of a held name was announced since events of its source were lost.
    fn is_certain(&self, name: BlockName) -> bool {
        match self.holder.place(self.trie, name) {
            Place::Unknown => false,
            Place::Plain(slot) => Tier::ALL.into_iter().any(|tier| {
                self.trie.holds(slot, self.holder.index(), tier)
                    && !self.holder.is_suspect(slot, tier)
            }),
            Place::Recorded | Place::Bit(_) => {
                self.holder.record(self.trie, name).is_some_and(|record| {
                    record.copies.iter().any(|at| {
                        self.sources.get(&at.source).is_none_or(|source| at.epoch >= source.epoch())
                    })
                })
            }
        }
    }

    /// The meaning of a held name.
    fn meaning(&self, name: BlockName) -> Meaning {
        if let Place::Plain(slot) = self.holder.place(self.trie, name) {
            let local = Some(self.trie.slots.local(slot));
            return Meaning { parent: self.trie.parent_name(slot), local };
        }
        let record = self.holder.record(self.trie, name);
        let parent = record.as_ref().and_then(|record| record.parent);
        Meaning { parent, local: record.and_then(|record| record.local) }
    }

    /// Adds an announcement of a held name, regardless of the announced meaning.
    fn announce_copy(&mut self, by: Announcement, name: BlockName) {
        match self.holder.place(self.trie, name) {
            Place::Plain(slot) => self.announce_plain(by, slot),
            Place::Recorded => self.announce_recorded(by, name),
            Place::Bit(at) => self.announce_bit(by, None, at),
            Place::Unknown => BlockOutcome::Noop,
        };
    }

    /// Whether this rank has the maximum number of names for the block, without the announced one.
    fn has_all_names(&self, at: At, block: StoredBlock) -> bool {
        match at {
            At::Slot(parent) => {
                self.holder.has_all_names(self.trie, self.limits, parent, block.local)
            }
            At::Unknown => false,
        }
    }

    /// Compares a block with the present content of its name. With a known parent position, the content is equal if the
    /// name is at the parent's child; else if parent name and local hash are equal.
    fn relation(&self, at: At, parent: Option<BlockName>, block: StoredBlock) -> Relation {
        let target = match at {
            At::Slot(slot) => Some(self.trie.child(slot, block.local)),
            At::Unknown => None,
        };
        let same = match self.holder.place(self.trie, block.name) {
            Place::Unknown => return Relation::New,
            Place::Plain(slot) => {
                let same = target.map_or_else(
                    || {
                        self.trie.parent_name(slot) == parent
                            && self.trie.slots.local(slot) == block.local
                    },
                    |child| child == Some(slot),
                );
                return if same { Relation::SamePlain(slot) } else { Relation::Conflict };
            }
            Place::Recorded | Place::Bit(_) => {
                self.holder.record(self.trie, block.name).is_some_and(|record| {
                    let spelled_same = record.parent == parent && record.local == Some(block.local);
                    match (record.slot, target) {
                        (Some(slot), Some(child)) => child == Some(slot),
                        (Some(_), None) => spelled_same,
                        // If the rank had all its blocks, a rejected block might have placed the name since.
                        (None, _) if self.holder.is_short() => false,
                        (None, _) => record.local.is_none() || spelled_same,
                    }
                })
            }
        };
        if same { Relation::SameRecord } else { Relation::Conflict }
    }

    /// Rejects blocks that are too deep. Drops earlier blocks under the same names if their content differs.
    fn reject_too_deep(&mut self, parent: Option<BlockName>, blocks: &[StoredBlock]) {
        let mut parent = parent;
        for block in blocks {
            let relation = match self.holder.records().get(block.name) {
                Some(record) if record.slot.is_none() => {
                    let spelled_same = record.parent == parent && record.local == Some(block.local);
                    let same = record.local.is_none() || spelled_same;
                    if same { Relation::SameRecord } else { Relation::Conflict }
                }
                _ => Relation::Conflict,
            };
            self.drop_for(relation, block.name);
            parent = Some(block.name);
        }
    }

    /// Drops the earlier block of a conflicting name.
    fn drop_for(&mut self, relation: Relation, name: BlockName) -> BlockOutcome {
        if relation != Relation::Conflict {
            return BlockOutcome::Applied;
        }
        if let Place::Plain(slot) = self.holder.place(self.trie, name) {
            self.spell_out(slot);
        }
        if let Some(slot) = self.take_record(name) {
            self.update_slot(slot);
        }
        BlockOutcome::Applied
    }

    /// Adds the missing tokens, position, or both to a parked record.
    fn complete(
        &mut self,
        by: Announcement,
        at: At,
        parent: Option<BlockName>,
        block: StoredBlock,
    ) -> BlockOutcome {
        let complete = |record: &mut Record| {
            let waited_for = std::mem::replace(&mut record.parent, parent);
            (waited_for, record.local.replace(block.local))
        };
        let completed = self.holder.records_mut().change(block.name, complete);
        let Some((waited_for, before)) = completed else { return BlockOutcome::Noop };
        self.relabel(block, before);
        self.holder.records_mut().stop_waiting(block.name, waited_for);
        match at {
            At::Slot(slot) => {
                self.announce_parked(by, block.name);
                self.put_record(by, slot, block, 1);
                self.place_waiting(block.name);
            }
            At::Unknown => {
                self.holder.records_mut().wait(block.name, parent);
                self.announce_parked(by, block.name);
            }
        }
        BlockOutcome::Applied
    }

    /// Adds a copy of a parked name.
    fn announce_parked(&mut self, by: Announcement, name: BlockName) {
        let announce = |record: &mut Record| (record.announce(by), record.local);
        let announced = self.holder.records_mut().change(name, announce);
        let Some((change, local)) = announced else { return };
        if change == Change::Key {
            self.record_gain(by.source, by.tier, (name, local));
        }
        self.holder.note_changed(name);
    }

    /// Adds an announcement of a plain slot.
    fn announce_plain(&mut self, by: Announcement, slot: Slot) -> BlockOutcome {
        let name = self.trie.slots.name(slot);
        self.trie.mark_stored(slot);
        if self.holder.is_primary(by.source) {
            let holds = self.trie.holds(slot, self.holder.index(), by.tier);
            let suspect = self.holder.is_suspect(slot, by.tier);
            if holds && !suspect && by.mode == CopyMode::Set {
                return BlockOutcome::Noop;
            }
            if !holds {
                self.trie.add_holder(slot, 1, self.holder.index(), by.tier);
                self.gain_run(by.source, by.tier, slot, 1);
                self.holder.changes_mut().note_slots(slot, 1);
            }
            if !holds || suspect {
                self.holder.confirm(slot, 1, by.tier);
                self.holder.note_changed_plain(std::iter::once(name));
                return BlockOutcome::Applied;
            }
        }
        self.spell_out(slot);
        self.announce_recorded(by, name)
    }

    /// Counts an announcement in the record of a name. `Noop` if the record is missing or stays unchanged.
    /// The trie changes only if the record has a slot: parked names have none.
    pub(crate) fn announce_recorded(&mut self, by: Announcement, name: BlockName) -> BlockOutcome {
        let announce = |record: &mut Record| (record.announce(by), record.slot, record.local);
        let announced = self.holder.records_mut().change(name, announce);
        let Some((change, slot, local)) = announced else { return BlockOutcome::Noop };
        if change == Change::Key {
            self.record_gain(by.source, by.tier, (name, local));
        }
        if let Some(slot) = slot {
            self.update_slot(slot);
        }
        if change == Change::None {
            return BlockOutcome::Noop;
        }
        self.holder.note_changed(name);
        BlockOutcome::Applied
    }
}
