//! State of one rank beyond its bits in the trie's sets: records, sources, changes and digests.

mod changing;
mod grouped;

use crate::bits::{BitBlock, GroupBits};
use crate::changes::ChangeLog;
use crate::contradicted::{Contradicted, Contradiction};
use crate::dirty::Dumps;
use crate::limits::Limits;
use crate::pages::{Confirmed, HeldPages};
use crate::record::{Copies, Record};
use crate::records::{Names, Records};
use crate::reuse::ReuseHistory;
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
/// A slot of the rank is *plain* if four conditions are met:
/// - It is held under its own name.
/// - It was announced with the parent's own name.
/// - Only the `primary` source stores it.
/// - It has one copy in each tier of the trie's sets.
///
/// Otherwise each of the slot's names has a record.
#[derive(Debug)]
pub(crate) struct Holder {
    worker: WorkerId,
    rank: DpRank,
    index: HolderIndex,
    /// Sources that feed the rank, in order of arrival.
    fed_by: SmallVec<[SourceId; 2]>,
    /// The source that plain slots belong to.
    primary: Option<SourceId>,
    /// The slot of the last stored block, which is usually the parent of the next one. The slot may have been
    /// reused since.
    last: Slot,
    held: HeldPages,
    confirmed: Confirmed,
    records: Records,
    /// Blocks of further groups that have no record.
    bits: GroupBits,
    /// The last block whose bit was set or cleared. The next one is often at an adjacent slot.
    last_bit: Option<BitBlock>,
    dumps: Dumps,
    changes: ChangeLog,
    shortfall: Shortfall,
    contradicted: Contradicted,
    /// `None` until an engine reports its reuse.
    reuse_history: Option<Box<ReuseHistory>>,
    /// Digests of the blocks of the sources that have digests.
    digests: Vec<(SourceId, RankDigest)>,
    /// The rank's contribution to the index's totals.
    counted: Totals,
}

/// A unit of a rank's blocks.
#[derive(Debug)]
pub(crate) enum Held {
    /// A slot and its names, each with a record.
    Recorded(Slot, Names),
    /// Consecutive plain slots of one segment: the first one, and their number.
    Plain(Slot, u32),
}

/// Where a rank has a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// The rank does not have the name.
    Unknown,
    /// The name is plain at this slot.
    Plain(Slot),
    /// The name has a record.
    Recorded,
    /// The name belongs to a block of a further group that has a bit.
    Bit(BitBlock),
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
            bits: GroupBits::default(),
            last_bit: None,
            dumps: Dumps::default(),
            changes: ChangeLog::default(),
            shortfall: Shortfall::default(),
            contradicted: Contradicted::default(),
            reuse_history: None,
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

    /// Blocks of further groups that have no record.
    pub(crate) const fn bits(&self) -> &GroupBits {
        &self.bits
    }

    /// Changes noted for the next image.
    pub(crate) const fn changes(&self) -> &ChangeLog {
        &self.changes
    }

    pub(crate) const fn changes_mut(&mut self) -> &mut ChangeLog {
        &mut self.changes
    }

    /// The running dumps.
    pub(crate) const fn dumps(&self) -> &Dumps {
        &self.dumps
    }

    pub(crate) const fn dumps_mut(&mut self) -> &mut Dumps {
        &mut self.dumps
    }

    // === sources ===

    /// Sources that feed the rank, in order of arrival.
    pub(crate) fn fed_by(&self) -> &[SourceId] {
        &self.fed_by
    }

    pub(crate) fn feed(&mut self, source: SourceId) {
        let at = self.fed_by.partition_point(|&other| other < source);
        self.fed_by.insert(at, source);
    }

    /// The source that plain slots belong to; `None` before the first store.
    pub(crate) const fn primary(&self) -> Option<SourceId> {
        self.primary
    }

    pub(crate) fn is_primary(&self, source: SourceId) -> bool {
        self.primary == Some(source)
    }

    /// Makes a source the primary one, unless there is one.
    pub(crate) fn adopt_source(&mut self, source: SourceId) {
        self.primary.get_or_insert(source);
    }

    /// Removes a source that has no blocks here.
    pub(crate) fn forget_source(&mut self, source: SourceId) {
        self.fed_by.retain(|at| *at != source);
        if self.is_primary(source) {
            self.primary = None;
        }
        self.clear_shortfall(source);
        self.stop_digest(source);
    }

    /// Marks the plain slots as suspect until they are announced again, because events of the primary source
    /// were lost.
    pub(crate) fn suspect_plain(&mut self) {
        self.confirmed.reset();
    }

    /// Clears the suspect mark of all plain slots.
    pub(crate) fn settle_suspects(&mut self) {
        self.confirmed.clear_suspects();
    }

    /// Whether a plain slot was not announced in a tier since events were lost.
    pub(crate) fn is_suspect(&self, slot: Slot, tier: Tier) -> bool {
        self.confirmed.is_suspect(slot, tier)
    }

    /// Records that the primary source has announced consecutive plain slots in a tier.
    pub(crate) fn confirm(&mut self, slot: Slot, len: u32, tier: Tier) {
        self.confirmed.add(slot, len, tier);
    }

    // === shortfall ===

    /// Whether blocks were evicted, or rejected as a consequence.
    pub(crate) const fn is_short(&self) -> bool {
        self.shortfall.blocks() > 0
    }

    pub(crate) const fn shed_blocks(&self) -> u64 {
        self.shortfall.blocks()
    }

    /// Sources that may lack evicted blocks.
    pub(crate) fn short_sources(&self) -> &[SourceId] {
        self.shortfall.sources()
    }

    /// Counts evicted blocks. `new` has the affected sources that were not affected before.
    pub(crate) fn add_shortfall(&mut self, blocks: u64, new: &[SourceId]) {
        self.shortfall.add(blocks, new);
        self.changes.note_heading();
    }

    /// Ends the shortfall of a source, because all its blocks here were removed.
    pub(crate) fn clear_shortfall(&mut self, source: SourceId) {
        self.shortfall.clear(source);
        self.changes.note_heading();
    }

    // === contradictions ===

    /// Records that a name was announced with another meaning.
    pub(crate) fn note_contradiction(&mut self, contradiction: Contradiction) {
        self.contradicted.record_contradiction(contradiction);
    }

    /// The first contradiction since the last clear, and their number.
    pub(crate) fn first_contradiction(&self) -> Option<(Contradiction, u64)> {
        self.contradicted.first()
    }

    /// Whether a name of the rank was also announced with another meaning.
    pub(crate) fn is_contradicted(&self, trie: &Trie) -> bool {
        let holds_nothing = self.placed() == 0 && self.parked() == 0;
        !holds_nothing && self.contradicted.is_any(|name| self.place(trie, name) != Place::Unknown)
    }

    /// Ends earlier contradictions of a name that is stored anew.
    pub(crate) fn forget_contradiction(&mut self, name: BlockName) {
        if self.contradicted.first().is_some() {
            self.clear_contradictions_if_empty();
            self.contradicted.forget(name);
        }
    }

    /// Forgets the contradictions of a rank without blocks.
    pub(crate) fn clear_contradictions_if_empty(&mut self) {
        if self.placed() == 0 && self.parked() == 0 {
            self.contradicted = Contradicted::default();
        }
    }

    // === reuse ===

    /// The last reported requests; `None` before the first report.
    pub(crate) fn reuse_history(&self) -> Option<&ReuseHistory> {
        self.reuse_history.as_deref()
    }

    /// Forgets the reported requests, because the blocks that they met were removed.
    pub(crate) fn forget_reuse(&mut self) {
        self.reuse_history = None;
    }

    pub(crate) fn reuse_history_mut(&mut self) -> &mut ReuseHistory {
        self.reuse_history.get_or_insert_default()
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

    /// Maintains a digest of a source's blocks, starting from `digest`.
    pub(crate) fn start_digest(&mut self, source: SourceId, digest: RankDigest) {
        debug_assert!(self.digest_of(source).is_none(), "one digest of source {source}");
        self.digests.push((source, digest));
    }

    pub(crate) fn stop_digest(&mut self, source: SourceId) {
        self.digests.retain(|(id, _)| *id != source);
    }

    // === totals ===

    /// Number of slots that the rank holds.
    pub(crate) const fn placed(&self) -> u64 {
        self.held.blocks()
    }

    /// Number of parked names.
    pub(crate) const fn parked(&self) -> usize {
        self.records.parked()
    }

    /// The rank's contribution to the index's totals.
    pub(crate) const fn counted(&self) -> Totals {
        self.counted
    }

    /// Recounts the contribution to the index's totals. Returns the old and the new one.
    pub(crate) fn recount(&mut self) -> (Totals, Totals) {
        let grouped = self.records.grouped();
        let now = Totals {
            bytes: self.bytes(),
            parked: self.parked(),
            grouped,
            grouped_ranks: usize::from(grouped > 0),
        };
        (std::mem::replace(&mut self.counted, now), now)
    }

    /// Bytes allocated, `self` included. Excludes the allocations outside the tables for a name of several
    /// sources, and for a slot or a parent of several names.
    pub(crate) fn bytes(&self) -> usize {
        size_of::<Self>()
            + self.held.bytes()
            + self.confirmed.bytes()
            + self.records.bytes()
            + self.bits.bytes()
            + self.changes.bytes()
            + self.reuse_history.as_ref().map_or(0, |_| size_of::<ReuseHistory>())
            + usize::from(self.fed_by.spilled()) * self.fed_by.capacity() * size_of::<SourceId>()
            + self.digests.capacity() * size_of::<(SourceId, RankDigest)>()
            + self.digests.iter().map(|(_, digest)| digest.bytes()).sum::<usize>()
    }

    /// Whether the running totals of the rank's tables are correct.
    pub(crate) fn is_counted(&self) -> bool {
        self.held.is_counted()
            && self.confirmed.is_counted()
            && self.records.is_counted()
            && self.bits.is_counted()
            && self.changes.is_counted()
    }
}

// === finding ===

impl Holder {
    /// Whether the rank holds a used slot plainly.
    pub(crate) fn is_plain(&self, trie: &Trie, slot: Slot) -> bool {
        !self.is_recorded(slot) && trie.holds_any(slot, self.index)
    }

    /// Whether the names of a slot have records.
    pub(crate) fn is_recorded(&self, slot: Slot) -> bool {
        self.records.names_at(slot).is_some()
    }

    /// Whether the child of `parent` with this content has the maximum number of names. The number is limited
    /// because a change of one name reads all.
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
        if let Some(slot) = self.plain_slot(trie, name) {
            return Place::Plain(slot);
        }
        self.find_bit(trie, name).map_or(Place::Unknown, Place::Bit)
    }

    /// Whether the main group has a name.
    pub(crate) fn has_in_main_group(&self, trie: &Trie, name: BlockName) -> bool {
        self.records.has_full(name) || self.plain_slot(trie, name).is_some()
    }

    fn plain_slot(&self, trie: &Trie, name: BlockName) -> Option<Slot> {
        let is_last = trie.is_named(self.last, name);
        let slot = if is_last { Some(self.last) } else { trie.named(name) };
        slot.filter(|&slot| self.is_plain(trie, slot))
    }

    /// Records the rank's last stored slot: chains grow at their ends.
    pub(crate) const fn stored_at(&mut self, slot: Slot) {
        self.last = slot;
    }

    /// Position of a name; `None` if it is unknown or parked.
    pub(crate) fn position(&self, trie: &Trie, name: BlockName) -> Option<Slot> {
        match self.place(trie, name) {
            Place::Unknown | Place::Bit(_) => None,
            Place::Plain(slot) => Some(slot),
            Place::Recorded => self.records.get(name).and_then(|record| record.slot),
        }
    }

    /// Builds the record equivalent to a plain slot. `epoch` is the primary source's loss epoch: suspect copies
    /// get the epoch before it.
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

    /// The next unit of blocks, from `slot` up to `end`; plain slots in runs of at most `run_max`.
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

    /// One part of the pages with held slots; `None` after the last part.
    pub(crate) fn pages(&self, part: usize) -> Option<impl Iterator<Item = Page>> {
        self.held.part(part)
    }

    /// Number of held slots in each page that has any.
    pub(crate) fn page_counts(&self) -> impl Iterator<Item = (Page, u8)> {
        self.held.iter()
    }
}
