//! Records of a rank's names that are not plain: by name, by slot, and by awaited parent. Most blocks of further groups
//! have a compact record.

use crate::compact::CompactRecord;
use crate::declared::DeclaredGroups;
use crate::record::Record;
use crate::slots::Slot;
use crate::table::SplitMap;
use kvasir_proto::types::{BlockName, Group, StoredBlock, Tier, TierSet};
use smallvec::SmallVec;
use std::borrow::Cow;

/// Names of one slot, or names that wait for one parent.
pub(crate) type Names = SmallVec<[BlockName; 1]>;

/// The records of one rank.
#[derive(Debug, Default)]
pub(crate) struct Records {
    by_name: SplitMap<BlockName, Record>,
    /// Blocks of further groups. A name stays in this table while its record is in `by_name`, so that a scan of the parts
    /// visits it.
    compact: SplitMap<BlockName, CompactRecord>,
    /// Names of each recorded slot.
    at_slots: SplitMap<Slot, Names>,
    /// Parked names by the name of the parent that they wait for.
    waiting: SplitMap<BlockName, Names>,
    /// Number of parked names.
    parked: usize,
    /// Number of names of further groups, declarations included.
    grouped: usize,
    /// The part of `grouped` with a record in `by_name`.
    spelled: usize,
    declared: DeclaredGroups,
}

// === reading ===

impl Records {
    pub(crate) fn get(&self, name: BlockName) -> Option<Cow<'_, Record>> {
        match self.compact_of(name) {
            Some(compact) => Some(Cow::Owned(compact.record()?)),
            None => self.by_name.get(name).map(Cow::Borrowed),
        }
    }

    /// The compact record of a name; `None` if it has a full record or none.
    fn compact_of(&self, name: BlockName) -> Option<CompactRecord> {
        if self.compact.is_empty() {
            return None;
        }
        self.compact.get(name).copied().filter(|compact| !compact.is_elsewhere())
    }

    /// Whether a name is in the table of compact records, even if its record is elsewhere.
    fn is_listed(&self, name: BlockName) -> bool {
        !self.compact.is_empty() && self.compact.contains(name)
    }

    pub(crate) fn contains(&self, name: BlockName) -> bool {
        self.has_full(name) || self.compact_of(name).is_some()
    }

    /// Whether a name has a full record. All recorded names of the main group have.
    pub(crate) fn has_full(&self, name: BlockName) -> bool {
        !self.by_name.is_empty() && self.by_name.contains(name)
    }

    /// Of the block of a further group that has this name: whether it is in one of `tiers`, and its parent as announced.
    /// `None` if there is no such block.
    pub(crate) fn grouped_in(
        &self,
        name: BlockName,
        tiers: TierSet,
    ) -> Option<(bool, Option<BlockName>)> {
        if let Some(compact) = self.compact_of(name) {
            return Some((compact.is_in_any(tiers)?, compact.parent()));
        }
        let record = self.by_name.get(name).filter(|record| record.is_grouped())?;
        let is_in = Tier::ALL.iter().any(|&tier| tiers.contains(tier) && record.is_in(tier));
        Some((is_in, record.parent))
    }

    pub(crate) fn is_parked(&self, name: BlockName) -> bool {
        self.get(name).is_some_and(|record| record.slot.is_none() && !record.is_grouped())
    }

    /// Number of names of further groups.
    pub(crate) const fn grouped(&self) -> usize {
        self.grouped
    }

    /// Whether any name of the main group has a record.
    pub(crate) const fn has_main_group(&self) -> bool {
        self.by_name.len() > self.spelled
    }

    /// The declared groups.
    pub(crate) const fn declared(&self) -> &DeclaredGroups {
        &self.declared
    }

    /// Number of parked names.
    pub(crate) const fn parked(&self) -> usize {
        self.parked
    }

    /// The names of a recorded slot; `None` if the slot is plain or not held.
    pub(crate) fn names_at(&self, slot: Slot) -> Option<&Names> {
        if self.at_slots.is_empty() { None } else { self.at_slots.get(slot) }
    }

    /// Number of recorded slots.
    pub(crate) const fn slots(&self) -> usize {
        self.at_slots.len()
    }

    /// Whether a name is neither recorded nor awaited as a parent.
    pub(crate) fn is_fresh(&self, name: BlockName) -> bool {
        !self.contains(name) && (self.waiting.is_empty() || !self.waiting.contains(name))
    }

    /// Whether any parked name waits for its parent.
    pub(crate) const fn has_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// The parked names that wait for a parent.
    pub(crate) fn waiting_for(&self, parent: BlockName) -> &[BlockName] {
        self.waiting.get(parent).map_or(&[], SmallVec::as_slice)
    }

    /// Number of parked names that wait for a parent.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting.iter().map(|(_, names)| names.len()).sum()
    }

    /// One part of the records; `None` after the last part. Iterating the numbers from 0 visits every name that stays at
    /// least once, even if others are added and removed meanwhile.
    pub(crate) fn part(
        &self,
        part: usize,
    ) -> Option<impl Iterator<Item = (BlockName, Cow<'_, Record>)>> {
        // The tables take turns, because either may grow meanwhile.
        let spelled = self.by_name.part(part / 2);
        let compact = self.compact.part(part / 2);
        if spelled.is_none() && compact.is_none() {
            return None;
        }
        let is_compact = part % 2 == 1;
        let spelled = spelled.filter(|_| !is_compact).into_iter().flatten();
        let spelled = spelled.filter(|(name, _)| !self.is_listed(*name));
        let compact = compact.filter(|_| is_compact).into_iter().flatten();
        let spelled = spelled.map(|(name, record)| (*name, Cow::Borrowed(record)));
        let compact = compact.filter_map(|&(name, _)| Some((name, self.get(name)?)));
        Some(spelled.chain(compact))
    }

    /// The names of one part of the records; `None` after the last part.
    pub(crate) fn names(&self, part: usize) -> Option<impl Iterator<Item = BlockName>> {
        self.part(part).map(|records| records.map(|(name, _)| name))
    }

    /// The parked names of one part of the records; `None` after the last part.
    pub(crate) fn parked_in_part(&self, part: usize) -> Option<impl Iterator<Item = BlockName>> {
        let is_parked = |(_, at): &(_, Cow<'_, Record>)| at.slot.is_none() && !at.is_grouped();
        Some(self.part(part)?.filter(is_parked).map(|(name, _)| name))
    }

    /// The names without a slot in one part of the records; `None` after the last part.
    pub(crate) fn without_slot(&self, part: usize) -> Option<impl Iterator<Item = BlockName>> {
        let unplaced = self.part(part)?.filter(|(_, record)| record.slot.is_none());
        Some(unplaced.map(|(name, _)| name))
    }

    /// The names of further groups in one part of the records, without declarations; `None` after the last part.
    pub(crate) fn grouped_in_part(&self, part: usize) -> Option<impl Iterator<Item = BlockName>> {
        let is_block = |(name, at): &(BlockName, Cow<'_, Record>)| {
            at.is_grouped() && !self.declared.has(*name)
        };
        Some(self.part(part)?.filter(is_block).map(|(name, _)| name))
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (BlockName, Cow<'_, Record>)> {
        let spelled = self.by_name.iter().map(|(name, record)| (*name, Cow::Borrowed(record)));
        let compact = self.compact.iter();
        let compact = compact.filter_map(|&(name, at)| Some((name, Cow::Owned(at.record()?))));
        spelled.chain(compact)
    }

    pub(crate) const fn bytes(&self) -> usize {
        self.by_name.bytes()
            + self.compact.bytes()
            + self.at_slots.bytes()
            + self.waiting.bytes()
            + self.declared.bytes()
    }

    pub(crate) fn is_counted(&self) -> bool {
        self.by_name.is_counted()
            && self.compact.is_counted()
            && self.at_slots.is_counted()
            && self.waiting.is_counted()
    }

    /// Whether each name has exactly one record.
    pub(crate) fn has_one_record_each(&self) -> bool {
        let is_one =
            |&(name, at): &(_, CompactRecord)| self.by_name.contains(name) == at.is_elsewhere();
        let spelled = self.by_name.iter().filter(|(_, record)| record.is_grouped()).count();
        self.compact.iter().all(is_one) && self.spelled == spelled
    }
}

// === changing ===

impl Records {
    /// Adds a parked name. It does not wait for a parent until [`Records::wait`].
    pub(crate) fn insert_parked(&mut self, name: BlockName, record: Record) {
        debug_assert!(record.slot.is_none(), "{name} is parked");
        self.by_name.insert(name, record);
        self.parked += 1;
    }

    /// Changes the content or copies of a record. Its slot changes only in this file. `None` if the name has no record.
    pub(crate) fn change<T>(
        &mut self,
        name: BlockName,
        change: impl FnOnce(&mut Record) -> T,
    ) -> Option<T> {
        let compact = if self.compact.is_empty() { None } else { self.compact.get_mut(name) };
        let Some(compact) = compact else { return self.by_name.get_mut(name).map(change) };
        if let Some(mut record) = compact.record() {
            let changed = change(&mut record);
            *compact = CompactRecord::of(&record).unwrap_or(CompactRecord::ELSEWHERE);
            if compact.is_elsewhere() {
                self.by_name.insert(name, record);
                self.spelled += 1;
            }
            return Some(changed);
        }
        let record = self.by_name.get_mut(name)?;
        let changed = change(record);
        if let Some(again) = CompactRecord::of(record) {
            *compact = again;
            self.by_name.remove(name);
            self.spelled -= 1;
        }
        Some(changed)
    }

    /// Makes a parked name a name of a further group, or a declaration.
    pub(crate) fn regroup(&mut self, block: StoredBlock, parent: Option<BlockName>) {
        let StoredBlock { name, local } = block;
        let Some(record) = self.by_name.get_mut(name) else { return };
        debug_assert!(record.slot.is_none() && !record.is_grouped(), "{name} is parked");
        record.local = Some(local);
        let waited_for = std::mem::replace(&mut record.parent, parent);
        self.parked -= 1;
        self.stop_waiting(name, waited_for);
        self.note_grouped(block);
        self.spelled += 1;
    }

    fn note_grouped(&mut self, block: StoredBlock) {
        if let Some(group) = Group::of_declaration(block) {
            self.declared.add(block.name, group);
        }
        self.grouped += 1;
    }

    /// Adds a name of a further group, or a declaration.
    pub(crate) fn insert_grouped(&mut self, name: BlockName, record: Record) {
        debug_assert!(record.is_grouped() && record.slot.is_none(), "{name} is of a group");
        if let Some(local) = record.local {
            self.note_grouped(StoredBlock { name, local });
        }
        let compact = CompactRecord::of(&record);
        // Declarations have no compact form.
        if record.local.is_some_and(|local| Group::number_of(local).is_some()) {
            self.compact.insert(name, compact.unwrap_or(CompactRecord::ELSEWHERE));
        }
        if compact.is_none() {
            self.by_name.insert(name, record);
            self.spelled += 1;
        }
    }

    /// Adds another name of a slot that is already recorded.
    pub(crate) fn insert_placed(&mut self, name: BlockName, slot: Slot, record: Record) {
        self.by_name.insert(name, Record { slot: Some(slot), ..record });
        self.at_slots.get_or_default(slot).push(name);
    }

    /// Adds the only name of a slot that was plain until now.
    pub(crate) fn spell_out(&mut self, name: BlockName, slot: Slot, record: Record) {
        debug_assert!(record.slot == Some(slot), "{name} is placed at slot {slot}");
        self.by_name.insert(name, record);
        self.at_slots.insert(slot, Names::from_elem(name, 1));
    }

    /// Removes a slot and its only name, because the slot is plain again.
    pub(crate) fn make_plain(&mut self, name: BlockName, slot: Slot) {
        let record = self.by_name.remove(name);
        debug_assert!(record.is_some_and(|at| at.slot == Some(slot)), "{name} is at slot {slot}");
        self.at_slots.remove(slot);
    }

    /// Places a parked name at a slot.
    pub(crate) fn place(&mut self, name: BlockName, slot: Slot) {
        if let Some(record) = self.by_name.get_mut(name) {
            debug_assert!(record.slot.is_none(), "{name} is parked");
            record.slot = Some(slot);
        }
        self.parked -= 1;
        self.at_slots.get_or_default(slot).push(name);
    }

    /// Removes a name. If it has a slot, settle the slot next.
    pub(crate) fn remove(&mut self, name: BlockName) -> Option<Record> {
        let compact = if self.compact.is_empty() { None } else { self.compact.remove(name) };
        let compact = compact.and_then(CompactRecord::record);
        let is_spelled = compact.is_none();
        let record = compact.or_else(|| self.by_name.remove(name))?;
        match record.slot {
            Some(slot) => {
                if let Some(names) = self.at_slots.get_mut(slot) {
                    names.retain(|at| *at != name);
                }
            }
            None if record.is_grouped() => {
                self.grouped -= 1;
                self.spelled -= usize::from(is_spelled);
                self.declared.remove(name);
            }
            None => {
                self.parked -= 1;
                self.stop_waiting(name, record.parent);
            }
        }
        Some(record)
    }

    /// The remaining names of a slot. Removes the slot if it has none.
    pub(crate) fn prune_slot(&mut self, slot: Slot) -> Names {
        let names = self.at_slots.get(slot).cloned().unwrap_or_default();
        if names.is_empty() {
            self.at_slots.remove(slot);
        }
        names
    }

    /// Registers a parked name as waiting for its parent.
    pub(crate) fn wait(&mut self, name: BlockName, parent: Option<BlockName>) {
        debug_assert!(self.is_parked(name), "{name} is parked");
        if let Some(parent) = parent {
            self.waiting.get_or_default(parent).push(name);
        }
    }

    /// Unregisters a name that waits for its parent.
    pub(crate) fn stop_waiting(&mut self, name: BlockName, parent: Option<BlockName>) {
        let Some(parent) = parent else {
            return;
        };
        let Some(names) = self.waiting.get_mut(parent) else {
            return;
        };
        names.retain(|at| *at != name);
        if names.is_empty() {
            self.waiting.remove(parent);
        }
    }

    /// Removes and returns the names that wait for a newly placed parent.
    pub(crate) fn take_waiting(&mut self, parent: BlockName) -> Names {
        self.waiting.remove(parent).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Copies;
    use crate::source::SourceId;
    use crate::table::mix;
    use smallvec::smallvec;
    use std::collections::{BTreeMap, BTreeSet};

    fn copies(source: u64, count: u32) -> Copies {
        let source = SourceId(u32::try_from(source).expect("a small number"));
        Copies { source, tier: Tier::Device, count, epoch: 0 }
    }

    /// A scan of the parts, repeated; each time it ends, it has visited all names that stayed.
    #[derive(Default)]
    struct Scan {
        part: usize,
        seen: BTreeSet<BlockName>,
        stayed: BTreeSet<BlockName>,
        ended: usize,
    }

    impl Scan {
        fn step(&mut self, records: &Records) {
            if let Some(names) = records.names(self.part) {
                self.seen.extend(names);
                self.part += 1;
                return;
            }
            assert!(self.stayed.is_subset(&self.seen), "a scan missed a name that stayed");
            let stayed = records.iter().map(|(name, _)| name).collect();
            *self = Self { stayed, ended: self.ended + 1, ..Self::default() };
        }
    }

    /// Names of a further group gain and lose copies at random while scans of the parts run. Each name keeps the one
    /// record that it should have, and a scan visits every name that stays.
    #[test]
    fn names_move_between_the_forms_and_no_scan_misses_one() {
        for seed in 0..8 {
            let mut records = Records::default();
            let mut model = BTreeMap::<BlockName, Record>::new();
            let mut scan = Scan::default();
            for step in 0..60_000 {
                let random = mix(seed << 32 | step);
                let block = Group::block(1, BlockName(random % 6_000));
                let name = block.name;
                match (model.get_mut(&name), random >> 40 & 3) {
                    (None, _) => {
                        let copies = smallvec![copies(0, 1 + u32::from(random >> 50 & 3 == 0))];
                        let record =
                            Record { parent: None, local: Some(block.local), slot: None, copies };
                        records.insert_grouped(name, record.clone());
                        model.insert(name, record);
                    }
                    (Some(_), 0) => {
                        assert_eq!(records.remove(name), model.remove(&name));
                        scan.stayed.remove(&name);
                    }
                    (Some(record), which) => {
                        let change = |record: &mut Record| match which {
                            1 => record.copies = smallvec![copies(0, 1)],
                            2 => record.copies = smallvec![copies(0, 1), copies(1, 1)],
                            _ => record.parent = Some(BlockName(random)),
                        };
                        assert_eq!(records.change(name, change), Some(()));
                        change(record);
                    }
                }
                if step % 500 == 0 {
                    assert_eq!(records.get(name).as_deref(), model.get(&name));
                    scan.step(&records);
                }
            }
            assert!(scan.ended > 5, "seed {seed}: {} scans", scan.ended);
            assert!(records.has_one_record_each() && records.is_counted());
            assert_eq!(records.grouped(), model.len());
            let all = records.iter().map(|(name, record)| (name, record.into_owned()));
            assert_eq!(all.collect::<BTreeMap<_, _>>(), model);
            let spelled = model.values().filter(|record| CompactRecord::of(record).is_none());
            assert!(spelled.count() > 100, "seed {seed}: both forms are in use");
        }
    }
}
