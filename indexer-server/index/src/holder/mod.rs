//! One rank: what it holds beyond the bits in the trie's sets.

mod changing;

use crate::changes::ChangeLog;
use crate::contradicted::{Contradicted, Contradiction};
use crate::dirty::Dumps;
use crate::limits::Limits;
use crate::pages::{Confirmed, HeldPages};
use crate::record::{Copies, Record};
use crate::records::{Names, Records};
use crate::sets::HolderIndex;
use crate::shortfall::Shortfall;
use crate::slots::{NONE, Page, Slot};
use crate::source::SourceId;
use crate::totals::Totals;
use crate::trie::Trie;
use kvasir_proto::digest::RankDigest;
use kvasir_proto::types::{BlockName, DpRank, LocalHash, Tier, WorkerId};
use smallvec::SmallVec;

/// State of one rank.
///
/// A slot it holds is either *plain*: held under the slot's own name, announced with the parent's
/// own name, by the `primary` source only, one copy in each tier of the trie's sets; or each of its
/// names has a record.
#[derive(Debug)]
pub(crate) struct Holder {
    worker: WorkerId,
    rank: DpRank,
    index: HolderIndex,
    /// Sources that feed it, in order of arrival.
    fed_by: SmallVec<[SourceId; 2]>,
    /// The source that plain slots belong to.
    primary: Option<SourceId>,
    /// The slot of the block that was stored last, which is usually the parent of the next one. The slot may have been reused since.
    last: Slot,
    held: HeldPages,
    confirmed: Confirmed,
    records: Records,
    dumps: Dumps,
    changes: ChangeLog,
    shortfall: Shortfall,
    contradicted: Contradicted,
    /// Digests of what sources hold here, of those that have digests.
    digests: Vec<(SourceId, RankDigest)>,
    /// What the index's totals have of it.
    counted: Totals,
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
            fed_by: SmallVec::new(),
            primary: None,
            last: NONE,
            held: HeldPages::default(),
            confirmed: Confirmed::default(),
            records: Records::default(),
            dumps: Dumps::default(),
            changes: ChangeLog::default(),
            shortfall: Shortfall::default(),
            contradicted: Contradicted::default(),
            digests: Vec::new(),
            counted: Totals::default(),
        }
    }

    pub(crate) const fn worker(&self) -> &WorkerId {
        &self.worker
    }

    pub(crate) const fn rank(&self) -> DpRank {
        self.rank
    }

    pub(crate) const fn index(&self) -> HolderIndex {
        self.index
    }

    /// Names that are not plain.
    pub(crate) const fn records(&self) -> &Records {
        &self.records
    }

    pub(crate) const fn records_mut(&mut self) -> &mut Records {
        &mut self.records
    }

    /// Notes for the next image.
    pub(crate) const fn changes(&self) -> &ChangeLog {
        &self.changes
    }

    pub(crate) const fn changes_mut(&mut self) -> &mut ChangeLog {
        &mut self.changes
    }

    /// Dumps under way.
    pub(crate) const fn dumps(&self) -> &Dumps {
        &self.dumps
    }

    pub(crate) const fn dumps_mut(&mut self) -> &mut Dumps {
        &mut self.dumps
    }

    // === sources ===

    /// Sources that feed it, in order of arrival.
    pub(crate) fn fed_by(&self) -> &[SourceId] {
        &self.fed_by
    }

    pub(crate) fn feed(&mut self, source: SourceId) {
        let at = self.fed_by.partition_point(|&other| other < source);
        self.fed_by.insert(at, source);
    }

    /// The source that plain slots belong to; none before the first store.
    pub(crate) const fn primary(&self) -> Option<SourceId> {
        self.primary
    }

    pub(crate) fn is_primary(&self, source: SourceId) -> bool {
        self.primary == Some(source)
    }

    /// Makes a source the primary one if there is none yet.
    pub(crate) fn adopt(&mut self, source: SourceId) {
        self.primary.get_or_insert(source);
    }

    /// A source that holds nothing here was removed.
    pub(crate) fn forget_source(&mut self, source: SourceId) {
        self.fed_by.retain(|at| *at != source);
        if self.is_primary(source) {
            self.primary = None;
        }
        self.clear_shortfall(source);
        self.stop_digest(source);
    }

    /// Events of the primary source were lost: its plain slots are suspect until announced again.
    pub(crate) fn suspect_plain(&mut self) {
        self.confirmed.reset();
    }

    /// No plain slot is suspect any more.
    pub(crate) fn settle_suspects(&mut self) {
        self.confirmed.settle();
    }

    /// Whether a plain slot has not been announced in a tier since events were lost.
    pub(crate) fn is_suspect(&self, slot: Slot, tier: Tier) -> bool {
        self.confirmed.is_suspect(slot, tier)
    }

    /// The primary source has announced consecutive plain slots in a tier.
    pub(crate) fn confirm(&mut self, slot: Slot, len: u32, tier: Tier) {
        self.confirmed.add(slot, len, tier);
    }

    // === shortfall ===

    /// Whether blocks were shed, or refused because of that.
    pub(crate) const fn is_short(&self) -> bool {
        self.shortfall.blocks() > 0
    }

    pub(crate) const fn shed_blocks(&self) -> u64 {
        self.shortfall.blocks()
    }

    /// Sources that may lack shed blocks.
    pub(crate) fn short_sources(&self) -> &[SourceId] {
        self.shortfall.sources()
    }

    /// Blocks were shed that these sources lack, of which only the new ones are given.
    pub(crate) fn add_shortfall(&mut self, blocks: u64, new: &[SourceId]) {
        self.shortfall.add(blocks, new);
        self.changes.note_heading();
    }

    /// A source lacks nothing here any more: all that it stored is gone.
    pub(crate) fn clear_shortfall(&mut self, source: SourceId) {
        self.shortfall.clear(source);
        self.changes.note_heading();
    }

    // === contradictions ===

    /// A name was announced as another block than it means.
    pub(crate) fn note_contradiction(&mut self, contradiction: Contradiction) {
        self.contradicted.note(contradiction);
    }

    /// The first contradiction since the last clear, and how many there were.
    pub(crate) fn first_contradiction(&self) -> Option<(Contradiction, u64)> {
        self.contradicted.first()
    }

    /// Whether a name that it holds was announced as another block, too.
    pub(crate) fn is_contradicted(&self, trie: &Trie) -> bool {
        let holds_nothing = self.placed() == 0 && self.parked() == 0;
        !holds_nothing && self.contradicted.is_any(|name| self.place(trie, name) != Place::Unknown)
    }

    /// A name that was not held is stored: earlier contradictions of it are over.
    pub(crate) fn forget_contradiction(&mut self, name: BlockName) {
        if self.contradicted.first().is_some() {
            self.clear_contradictions_if_empty();
            self.contradicted.forget(name);
        }
    }

    /// Forgets the contradictions of a rank that holds no block.
    pub(crate) fn clear_contradictions_if_empty(&mut self) {
        if self.placed() == 0 && self.parked() == 0 {
            self.contradicted = Contradicted::default();
        }
    }

    // === digests ===

    pub(crate) const fn has_digests(&self) -> bool {
        !self.digests.is_empty()
    }

    pub(crate) fn digests(&self) -> &[(SourceId, RankDigest)] {
        &self.digests
    }

    pub(crate) fn digest_of(&self, source: SourceId) -> Option<&RankDigest> {
        self.digests.iter().find(|(id, _)| *id == source).map(|(_, digest)| digest)
    }

    pub(crate) fn digest_mut(&mut self, source: SourceId) -> Option<&mut RankDigest> {
        self.digests.iter_mut().find(|(id, _)| *id == source).map(|(_, digest)| digest)
    }

    /// Keeps a digest of what a source holds up to date, from this one on.
    pub(crate) fn start_digest(&mut self, source: SourceId, digest: RankDigest) {
        debug_assert!(self.digest_of(source).is_none(), "one digest of source {source}");
        self.digests.push((source, digest));
    }

    pub(crate) fn stop_digest(&mut self, source: SourceId) {
        self.digests.retain(|(id, _)| *id != source);
    }

    // === totals ===

    /// Number of slots held.
    pub(crate) const fn placed(&self) -> u64 {
        self.held.blocks()
    }

    /// Number of parked names.
    pub(crate) const fn parked(&self) -> usize {
        self.records.parked()
    }

    /// What the index's totals have of it.
    pub(crate) const fn counted(&self) -> Totals {
        self.counted
    }

    /// Counts it for the index's totals; returns what they have and what they should have.
    pub(crate) fn recount(&mut self) -> (Totals, Totals) {
        let now = Totals { bytes: self.bytes(), parked: self.parked() };
        (std::mem::replace(&mut self.counted, now), now)
    }

    /// Bytes allocated, itself included; without what a name of several sources, and a slot or a
    /// parent of several names, keep outside of their tables.
    pub(crate) fn bytes(&self) -> usize {
        size_of::<Self>()
            + self.held.bytes()
            + self.confirmed.bytes()
            + self.records.bytes()
            + self.changes.bytes()
            + usize::from(self.fed_by.spilled()) * self.fed_by.capacity() * size_of::<SourceId>()
            + self.digests.capacity() * size_of::<(SourceId, RankDigest)>()
            + self.digests.iter().map(|(_, digest)| digest.bytes()).sum::<usize>()
    }

    /// Whether the running totals of its tables are right.
    pub(crate) fn is_counted(&self) -> bool {
        self.held.is_counted()
            && self.confirmed.is_counted()
            && self.records.is_counted()
            && self.changes.is_counted()
    }
}

// === finding ===

impl Holder {
    /// Whether it holds a slot that is in use, and plainly.
    pub(crate) fn is_plain(&self, trie: &Trie, slot: Slot) -> bool {
        !self.is_recorded(slot) && trie.holds_any(slot, self.index)
    }

    /// Whether the names of a slot are spelled out in records.
    pub(crate) fn is_recorded(&self, slot: Slot) -> bool {
        self.records.names_at(slot).is_some()
    }

    /// Whether the child of `parent` with this content has as many names as a block may have. A
    /// change of one of them reads all.
    pub(crate) fn has_all_names(
        &self,
        trie: &Trie,
        limits: &Limits,
        parent: Slot,
        local: LocalHash,
    ) -> bool {
        let names = || self.records.names_at(trie.child(parent, local)?);
        self.records.slots() > 0
            && names().is_some_and(|names| names.len() >= limits.block_names_max)
    }

    /// Where this rank has a name.
    pub(crate) fn place(&self, trie: &Trie, name: BlockName) -> Place {
        if self.records.contains(name) {
            return Place::Recorded;
        }
        let is_last = trie.is_named(self.last, name);
        match if is_last { Some(self.last) } else { trie.named(name) } {
            Some(slot) if self.is_plain(trie, slot) => Place::Plain(slot),
            _ => Place::Unknown,
        }
    }

    /// Notes where the rank stored last: chains grow at their ends.
    pub(crate) const fn stored_at(&mut self, slot: Slot) {
        self.last = slot;
    }

    /// Position of a name; none if it is not known or parked.
    pub(crate) fn position(&self, trie: &Trie, name: BlockName) -> Option<Slot> {
        match self.place(trie, name) {
            Place::Unknown => None,
            Place::Plain(slot) => Some(slot),
            Place::Recorded => self.records.get(name).and_then(|record| record.slot),
        }
    }

    /// The record that a plain slot stands for. `epoch` is the primary source's loss epoch.
    pub(crate) fn plain_record(&self, trie: &Trie, slot: Slot, epoch: u32) -> Record {
        let mut copies = SmallVec::new();
        if let Some(source) = self.primary {
            for tier in Tier::ALL {
                if trie.holds(slot, self.index, tier) {
                    let suspect = u32::from(self.is_suspect(slot, tier));
                    let epoch = epoch.saturating_sub(suspect);
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
            if let Some(names) = self.records.names_at(slot) {
                return Some(Held::Recorded(slot, names.clone()));
            }
            let stop = stop.min(slot + run_max);
            let run = (slot + 1..stop).find(|&at| self.is_recorded(at)).unwrap_or(stop) - slot;
            return Some(Held::Plain(slot, run));
        }
        None
    }

    /// One part of the pages in which it holds slots; none past the last part.
    pub(crate) fn pages(&self, part: usize) -> Option<impl Iterator<Item = Page>> {
        self.held.part(part)
    }

    /// Number of slots held in each page that has any.
    pub(crate) fn page_counts(&self) -> impl Iterator<Item = (Page, u8)> {
        self.held.iter()
    }
}
