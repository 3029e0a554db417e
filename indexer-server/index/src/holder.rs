//! One rank: what it holds beyond the bits in the trie's sets.

use crate::changes::Changes;
use crate::dirty::DirtyNames;
use crate::limits::Limits;
use crate::record::{Copies, Record};
use crate::sets::HolderIndex;
use crate::slots::{PAGE_SLOTS, Page, Slot, page_of};
use crate::source::SourceId;
use crate::table::SplitMap;
use crate::trie::Trie;
use kvasir_proto::digest::RankDigest;
use kvasir_proto::types::{BlockName, DpRank, LocalHash, Tier, WorkerId};
use smallvec::SmallVec;
use std::ops::Range;

/// Names that one slot, or one awaited parent, has at a rank.
pub(crate) type Names = SmallVec<[BlockName; 1]>;

/// State of one rank.
///
/// A slot it holds is either *plain*: held under the slot's own name, announced with the parent's
/// own name, by the `primary` source only, one copy in each tier of the trie's sets; or it stands
/// in `slot_names`, and each of its names has a record.
#[derive(Debug)]
pub(crate) struct Holder {
    pub(crate) worker: WorkerId,
    pub(crate) rank: DpRank,
    pub(crate) index: HolderIndex,
    /// The source that plain slots belong to.
    pub(crate) primary: Option<SourceId>,
    /// Slots it holds, in any tier, by page: how many.
    pub(crate) pages: SplitMap<Page, u8>,
    /// Once events of the primary source were lost: slots that it has announced since, by tier and
    /// page, one bit each.
    /// Plain slots that are not in here are doubtful; of the others the records tell.
    pub(crate) confirmed: Option<Box<[SplitMap<Page, u64>; Tier::COUNT]>>,
    /// Records of all names that are not plain.
    pub(crate) records: SplitMap<BlockName, Record>,
    /// Names of each slot that is not plain.
    pub(crate) slot_names: SplitMap<Slot, Names>,
    /// Parked names by the parent name they wait for.
    pub(crate) waiting: SplitMap<BlockName, Names>,
    /// Number of parked names.
    pub(crate) parked: usize,
    /// Number of slots held.
    pub(crate) placed: u64,
    /// Dumps under way.
    pub(crate) dumps: SmallVec<[DirtyNames; 1]>,
    /// What changed since the last image; none if anything may have.
    pub(crate) changes: Option<Box<Changes>>,
    /// Blocks shed for the byte budget, and not taken because of that, as long as some source may
    /// lack some.
    pub(crate) shed_blocks: u64,
    /// Sources of which blocks may be missing since some were shed.
    pub(crate) short: SmallVec<[SourceId; 1]>,
    /// Digests of what sources hold here, of those whose digests are kept.
    pub(crate) digests: Vec<(SourceId, RankDigest)>,
    /// What the index's totals have of it: bytes and parked names.
    pub(crate) counted: (usize, usize),
}

/// Something that a rank holds.
#[derive(Debug)]
pub(crate) enum Held {
    /// A slot, and its names, each in a record.
    Recorded(Slot, Names),
    /// The first of some consecutive plain slots of one segment, and how many.
    Plain(Slot, u32),
}

/// Where a rank has a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// Nowhere.
    Unknown,
    /// At this slot, plain.
    Plain(Slot),
    /// In a record.
    Recorded,
}

impl Holder {
    pub(crate) fn new(worker: WorkerId, rank: DpRank, index: HolderIndex) -> Self {
        Self {
            worker,
            rank,
            index,
            primary: None,
            pages: SplitMap::default(),
            confirmed: None,
            records: SplitMap::default(),
            slot_names: SplitMap::default(),
            waiting: SplitMap::default(),
            parked: 0,
            placed: 0,
            dumps: SmallVec::new(),
            changes: None,
            shed_blocks: 0,
            short: SmallVec::new(),
            digests: Vec::new(),
            counted: (0, 0),
        }
    }

    /// Whether it holds a slot that is in use, and plainly.
    pub(crate) fn is_plain(&self, trie: &Trie, slot: Slot) -> bool {
        !self.is_recorded(slot) && trie.holds_any(slot, self.index)
    }

    pub(crate) fn is_recorded(&self, slot: Slot) -> bool {
        !self.slot_names.is_empty() && self.slot_names.contains(slot)
    }

    /// Whether it has as many names as it may for the child of `parent` with this content. What is
    /// done for one of them looks at all.
    pub(crate) fn has_all_names(
        &self,
        trie: &Trie,
        limits: &Limits,
        parent: Slot,
        local: LocalHash,
    ) -> bool {
        let names = || self.slot_names.get(trie.child(parent, local)?);
        !self.slot_names.is_empty()
            && names().is_some_and(|names| names.len() >= limits.block_names_max)
    }

    /// Where this rank has a name.
    pub(crate) fn place(&self, trie: &Trie, name: BlockName) -> Place {
        if !self.records.is_empty() && self.records.contains(name) {
            return Place::Recorded;
        }
        match trie.named(name) {
            Some(slot) if self.is_plain(trie, slot) => Place::Plain(slot),
            _ => Place::Unknown,
        }
    }

    /// Position of a name; none if it is not known or parked.
    pub(crate) fn position(&self, trie: &Trie, name: BlockName) -> Option<Slot> {
        match self.place(trie, name) {
            Place::Unknown => None,
            Place::Plain(slot) => Some(slot),
            Place::Recorded => self.records.get(name).and_then(|record| record.slot),
        }
    }

    /// Whether a plain slot has not been announced in a tier since events were lost.
    pub(crate) fn is_doubtful(&self, slot: Slot, tier: Tier) -> bool {
        let confirmed = self.confirmed.as_ref().and_then(|tiers| tiers.get(tier.index()));
        confirmed.is_some_and(|pages| {
            pages.get(page_of(slot)).is_none_or(|bits| bits >> (slot % PAGE_SLOTS) & 1 == 0)
        })
    }

    /// Says that plain slots have been announced in a tier.
    pub(crate) fn confirm(&mut self, slots: Range<Slot>, tier: Tier) {
        let confirmed = self.confirmed.as_mut().and_then(|tiers| tiers.get_mut(tier.index()));
        let Some(confirmed) = confirmed.filter(|_| !slots.is_empty()) else {
            return;
        };
        let mut first = slots.start % PAGE_SLOTS;
        for (page, count) in by_page(slots.start, slots.end - slots.start) {
            *confirmed.get_or_default(page) |= u64::MAX >> (64 - u32::from(count)) << first;
            first = 0;
        }
    }

    /// The record that a plain slot stands for. `epoch` is the primary source's loss epoch.
    pub(crate) fn plain_record(&self, trie: &Trie, slot: Slot, epoch: u32) -> Record {
        let mut copies = SmallVec::new();
        if let Some(source) = self.primary {
            for tier in Tier::ALL {
                if trie.holds(slot, self.index, tier) {
                    let doubtful = u32::from(self.is_doubtful(slot, tier));
                    let epoch = epoch.saturating_sub(doubtful);
                    copies.push(Copies { source, tier, count: 1, epoch });
                }
            }
        }
        Record {
            parent: trie.parent_name(slot),
            local: Some(trie.slots.local(slot)),
            slot: Some(slot),
            copies,
        }
    }

    /// What it holds next, from `slot` up to `end`; plain slots in runs of at most `run_max`.
    pub(crate) fn next_held(
        &self,
        trie: &Trie,
        mut slot: Slot,
        end: Slot,
        run_max: u32,
    ) -> Option<Held> {
        while slot < end {
            if !trie.slots.is_used(slot) {
                slot += 1;
                continue;
            }
            let stop = end.min(trie.segment_of(slot).tail() + 1);
            if !trie.holds_any(slot, self.index) {
                slot = stop;
                continue;
            }
            if let Some(names) = self.slot_names.get(slot) {
                return Some(Held::Recorded(slot, names.clone()));
            }
            let stop = stop.min(slot + run_max);
            let run = (slot + 1..stop).find(|&at| self.is_recorded(at)).unwrap_or(stop) - slot;
            return Some(Held::Plain(slot, run));
        }
        None
    }

    /// Spells a plain slot out as a record, so that it can become something else.
    pub(crate) fn spell_out(&mut self, trie: &Trie, slot: Slot, epoch: u32) {
        let record = self.plain_record(trie, slot, epoch);
        let name = trie.slots.name(slot);
        self.records.insert(name, record);
        self.slot_names.insert(slot, Names::from_elem(name, 1));
        self.change_slots(slot, 1);
        self.change_name(name);
    }

    /// Brings the trie in line with the records of a slot that is not plain, and makes the slot
    /// plain again where they allow it. `epoch` is the primary source's loss epoch.
    pub(crate) fn settle(&mut self, trie: &mut Trie, slot: Slot, epoch: u32) {
        let names = self.slot_names.get(slot).cloned().unwrap_or_default();
        if names.is_empty() {
            self.slot_names.remove(slot);
        }
        let held = |tier| {
            names.iter().any(|&name| self.records.get(name).is_some_and(|at| at.is_in(tier)))
        };
        let tiers = Tier::ALL.map(|tier| (tier, held(tier)));
        let any = tiers.iter().any(|&(_, held)| held);
        let was_held = trie.holds_any(slot, self.index);
        match (was_held, any) {
            (false, true) => self.note(slot, 1),
            (true, false) => self.let_go(slot, 1),
            _ => {}
        }
        // Holding comes first, so that the slot is never without a holder in between.
        for (tier, _) in tiers.iter().filter(|(_, held)| *held) {
            trie.hold(slot, 1, self.index, *tier);
        }
        for (tier, _) in tiers.iter().filter(|(_, held)| !held) {
            if trie.slots.is_used(slot) && trie.holds(slot, self.index, *tier) {
                trie.unhold(slot, 1, self.index, *tier);
            }
        }
        if was_held && !any {
            self.release(trie, slot);
        }
        if let [name] = names.as_slice() {
            self.make_plain(trie, slot, *name, epoch);
        }
    }

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
            self.records.remove(name);
            self.slot_names.remove(slot);
            Tier::ALL.iter().for_each(|&tier| self.confirm(slot..slot + 1, tier));
            self.change_slots(slot, 1);
            self.change_name(name);
        }
    }

    /// Counts consecutive slots that it holds from now on.
    pub(crate) fn note(&mut self, slot: Slot, len: u32) {
        self.placed += u64::from(len);
        for (page, count) in by_page(slot, len) {
            *self.pages.get_or_default(page) += count;
        }
    }

    /// Counts consecutive slots that it holds no more.
    pub(crate) fn let_go(&mut self, slot: Slot, len: u32) {
        self.placed -= u64::from(len);
        for (page, count) in by_page(slot, len) {
            if let Some(held) = self.pages.get_mut(page) {
                *held -= count;
                if *held == 0 {
                    self.pages.remove(page);
                }
            }
        }
    }

    /// Notes for the dumps under way that a plain name changed.
    pub(crate) fn touch_plain(&mut self, name: BlockName) {
        for dump in &mut self.dumps {
            dump.touch(name);
        }
    }

    /// Notes for the dumps under way and the next image that a name with a record changed.
    pub(crate) fn touch(&mut self, name: BlockName) {
        self.touch_plain(name);
        self.change_name(name);
    }

    /// Cuts off the dumps under way.
    pub(crate) fn abort_dumps(&mut self, reason: &'static str) {
        for dump in &mut self.dumps {
            dump.abort(reason);
        }
    }

    /// Whether some of what it was told to hold was shed, or refused since because of that.
    pub(crate) const fn is_short(&self) -> bool {
        self.shed_blocks > 0
    }

    /// A source lacks nothing here any more: all that it stored is gone.
    pub(crate) fn is_whole_for(&mut self, source: SourceId) {
        self.short.retain(|at| *at != source);
        self.change_heading();
        if self.short.is_empty() {
            self.shed_blocks = 0;
        }
    }

    /// Whether the running totals of its tables are right.
    pub(crate) fn is_counted(&self) -> bool {
        let mut confirmed = self.confirmed.iter().flat_map(|tiers| tiers.iter());
        confirmed.all(SplitMap::is_counted)
            && self.changes.iter().all(|changes| changes.is_counted())
            && self.pages.is_counted()
            && self.records.is_counted()
            && self.slot_names.is_counted()
            && self.waiting.is_counted()
    }

    /// Bytes allocated, itself included; without what a name of several sources, and a slot or a
    /// parent of several names, keep outside of their tables.
    pub(crate) fn bytes(&self) -> usize {
        let confirmed = self.confirmed.iter().flat_map(|tiers| tiers.iter());
        let confirmed: usize = confirmed.map(|pages| size_of_val(pages) + pages.bytes()).sum();
        confirmed
            + self.changes.as_ref().map_or(0, |changes| changes.bytes())
            + size_of::<Self>()
            + self.pages.bytes()
            + self.records.bytes()
            + self.slot_names.bytes()
            + self.waiting.bytes()
            + self.digests.capacity() * size_of::<(SourceId, RankDigest)>()
            + self.digests.iter().map(|(_, digest)| digest.bytes()).sum::<usize>()
    }
}

impl Holder {
    /// Notes for the next image that what it plainly holds of consecutive slots changed.
    pub(crate) fn change_slots(&mut self, slot: Slot, len: u32) {
        if self.changes.as_mut().is_some_and(|changes| !changes.note_slots(slot, len)) {
            self.changes = None;
        }
    }

    /// Notes for the next image that a record changed.
    pub(crate) fn change_name(&mut self, name: BlockName) {
        if self.changes.as_mut().is_some_and(|changes| !changes.note_name(name)) {
            self.changes = None;
        }
    }

    /// Notes for the next image that it has let go of a slot: if that is in use for something else,
    /// it may be for a block below that the rank holds.
    pub(crate) fn release(&mut self, trie: &Trie, slot: Slot) {
        let Some(changes) = self.changes.as_mut().filter(|_| trie.slots.is_used(slot)) else {
            return;
        };
        if !changes.note_page(page_of(slot), 1 << (slot % PAGE_SLOTS)) {
            self.changes = None;
        }
    }

    /// Notes for the next image that something besides blocks changed.
    pub(crate) fn change_heading(&mut self) {
        if let Some(changes) = &mut self.changes {
            changes.heading = true;
        }
    }

    /// Whether the next image has anything to say of it.
    pub(crate) fn has_changed(&self) -> bool {
        self.changes.as_ref().is_none_or(|changes| !changes.is_empty())
    }
}

/// The pages of consecutive slots, and how many of them lie in each.
fn by_page(slot: Slot, len: u32) -> impl Iterator<Item = (Page, u8)> {
    let end = slot + len;
    (page_of(slot)..=page_of(end - 1)).map(move |page| {
        let (first, last) = ((page * PAGE_SLOTS).max(slot), ((page + 1) * PAGE_SLOTS).min(end));
        #[expect(clippy::cast_possible_truncation, reason = "a page has 64 slots")]
        let count = (last - first) as u8;
        (page, count)
    })
}
