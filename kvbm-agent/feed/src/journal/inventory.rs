//! All blocks that a source holds over its ranks, and the changes while a dump reads them.

use super::names::{Names, Record};
use super::rank::{Entry, Rank};
use super::scan::{DumpId, Scan};
use super::{AppendError, DumpAbort, JournalConfig};
use kvasir_proto::digest::{RankDigest, block_digest};
use kvasir_proto::limits::{DUMP_DIRTY_NAMES_MAX, WORKER_RANKS_MAX};
use kvasir_proto::types::{
    BlockName, CopyMode, DpRank, HeldBlock, KvEvent, LocalHash, StoredBlock, Tier,
};
use rustc_hash::FxHashSet;
use std::collections::BTreeMap;

/// Number of names looked up in advance: as many as stay in the cache.
const AHEAD_NAMES: usize = 64;

/// Names held by a source.
#[derive(Debug)]
pub(super) struct Inventory {
    copy_mode: CopyMode,
    held_blocks_max: usize,
    pub(super) ranks: BTreeMap<DpRank, Rank>,
    held_blocks: usize,
    pub(super) scan: Option<Scan>,
    pub(super) last_dump: u32,
    /// The dump that was aborted last, and why.
    pub(super) aborted: Option<(DumpId, DumpAbort)>,
}

/// Position of a stored block.
#[derive(Clone, Copy)]
struct Place {
    parent: Option<BlockName>,
    local: Option<LocalHash>,
    tier: Tier,
}

impl Inventory {
    pub(super) const fn new(config: &JournalConfig) -> Self {
        Self {
            copy_mode: config.copy_mode,
            held_blocks_max: config.held_blocks_max,
            ranks: BTreeMap::new(),
            held_blocks: 0,
            scan: None,
            last_dump: 0,
            aborted: None,
        }
    }

    /// Number of held names over all ranks.
    pub(super) const fn held_blocks(&self) -> usize {
        self.held_blocks
    }

    /// Ranks with refused blocks that they may hold.
    pub(super) fn incomplete(&self) -> impl Iterator<Item = DpRank> {
        let incomplete = self.ranks.iter().filter(|(_, rank)| rank.incomplete);
        incomplete.map(|(number, _)| *number)
    }

    pub(super) fn is_incomplete(&self) -> bool {
        self.incomplete().next().is_some()
    }

    pub(super) fn bytes(&self) -> usize {
        self.ranks.values().map(|rank| rank.names.bytes() + rank.digest.bytes()).sum()
    }

    /// Digest of all held blocks; `None` if blocks are missing.
    pub(super) fn digest(&self) -> Option<u64> {
        let totals = self.ranks.iter().map(|(&number, rank)| rank.digest.total(number));
        (!self.is_incomplete()).then(|| totals.fold(0, u64::wrapping_add))
    }

    /// Digests by rank.
    pub(super) fn digests(&self) -> Vec<(DpRank, RankDigest)> {
        self.ranks.iter().map(|(&number, rank)| (number, rank.digest.clone())).collect()
    }

    /// Begins a new incarnation without blocks.
    pub(super) fn begin_incarnation(&mut self) {
        self.abort(DumpAbort::NewIncarnation);
        self.ranks.clear();
        self.held_blocks = 0;
    }

    /// Refuses a rank beyond the limit.
    pub(super) fn check_rank(&self, rank: DpRank) -> Result<(), AppendError> {
        let limit = WORKER_RANKS_MAX;
        if self.ranks.len() < limit || self.ranks.contains_key(&rank) {
            return Ok(());
        }
        Err(AppendError::TooManyRanks { rank, limit })
    }

    /// Applies one event.
    pub(super) fn apply(&mut self, rank: DpRank, event: &KvEvent) {
        match event {
            KvEvent::Stored { parent, tier, blocks } => {
                let mut parent = *parent;
                for blocks in blocks.chunks(AHEAD_NAMES) {
                    self.read_ahead(rank, blocks.iter().map(|block| block.name));
                    for &StoredBlock { name, local } in blocks {
                        self.store(rank, name, Place { parent, local: Some(local), tier: *tier });
                        parent = Some(name);
                    }
                }
            }
            KvEvent::StoredNames { tier, names } => {
                for names in names.chunks(AHEAD_NAMES) {
                    self.read_ahead(rank, names.iter().copied());
                    for &name in names {
                        self.store(rank, name, Place { parent: None, local: None, tier: *tier });
                    }
                }
            }
            KvEvent::Removed { tier, names } | KvEvent::Gone { tier, names } => {
                let all_copies = matches!(event, KvEvent::Gone { .. });
                for names in names.chunks(AHEAD_NAMES) {
                    self.read_ahead(rank, names.iter().copied());
                    if let Some(rank) = self.ranks.get(&rank) {
                        rank.names.read_ahead_last(names.len());
                    }
                    for &name in names {
                        self.remove(rank, name, *tier, all_copies);
                    }
                }
            }
            KvEvent::Cleared => self.clear(rank),
            KvEvent::ClearedTier(tier) => self.clear_tier(rank, *tier),
        }
    }

    /// Ranks with held blocks.
    pub(super) fn ranks(&self) -> Vec<DpRank> {
        let held = self.ranks.iter().filter(|(_, rank)| rank.names.len() > 0);
        held.map(|(number, _)| *number).collect()
    }

    /// Returns whether `is_fine` is true for each held block and tier.
    pub(super) fn all_held(
        &self,
        is_fine: &mut impl FnMut(DpRank, BlockName, Tier) -> bool,
    ) -> bool {
        self.ranks.iter().all(|(&number, Rank { names, .. })| {
            let mut records = (0..names.len()).filter_map(|slot| names.at(slot));
            records.all(|record| {
                let mut tiers = Tier::ALL.into_iter().zip(record.tiers());
                tiers.all(|(tier, held)| !held || is_fine(number, record.name(), tier))
            })
        })
    }

    /// Restores a name from a record of a dump. A later record replaces an earlier one, and removes the name if it has
    /// no copies.
    pub(super) fn bring_back(&mut self, number: DpRank, held: &HeldBlock) {
        let HeldBlock { name, parent, local, copies } = *held;
        if let Some(rank) = self.ranks.get_mut(&number)
            && let Some(slot) = rank.names.find(name)
        {
            if let Some(before) = rank.names.at(slot).map(Entry::from_record) {
                let nothing = Entry { local: None, tiers: [false; Tier::COUNT] };
                rank.change_digest(name, &before, &nothing);
            }
            for tier in Tier::ALL {
                rank.names.set_copies(slot, tier, 0);
            }
            rank.names.remove(slot);
            self.held_blocks -= 1;
        }
        let mut tiers = Tier::ALL.into_iter().zip(copies).filter(|(_, copies)| *copies > 0);
        let Some((tier, count)) = tiers.next() else { return };
        self.store_new(number, name, Place { parent, local, tier });
        let Some(rank) = self.ranks.get_mut(&number) else { return };
        let Some(slot) = rank.names.find(name) else { return };
        rank.names.set_copies(slot, tier, count);
        for (tier, count) in tiers {
            rank.names.set_copies(slot, tier, count);
            rank.digest.add(tier, block_digest(name, local));
        }
    }

    /// Marks that the rank may hold refused blocks, even if it has no others.
    pub(super) fn mark_incomplete(&mut self, number: DpRank) {
        self.rank(number).incomplete = true;
    }

    fn rank(&mut self, number: DpRank) -> &mut Rank {
        self.ranks.entry(number).or_insert_with(Rank::new)
    }

    fn read_ahead(&self, number: DpRank, names: impl Iterator<Item = BlockName>) {
        if let Some(rank) = self.ranks.get(&number) {
            rank.names.read_ahead(names);
        }
    }

    /// Adds a copy of a name in a tier. Adds the name if it is new. A known name keeps its content, but gets content if
    /// it has none yet.
    fn store(&mut self, number: DpRank, name: BlockName, place: Place) {
        let found = self.ranks.get(&number).and_then(|rank| rank.names.find(name));
        let Some(slot) = found else {
            self.store_new(number, name, place);
            return;
        };
        self.record_change(number, slot);
        let Some(rank) = self.ranks.get_mut(&number) else { return };
        let Some(&record) = rank.names.at(slot) else { return };
        let before = Entry::from_record(&record);
        let local = record.local();
        // A store that contradicts the name's content counts as a copy of the held block, as in the index.
        if local.is_none()
            && place.local.is_some()
            && let Some(record) = rank.names.at_mut(slot)
        {
            record.link(place.parent, place.local);
        }
        let Some(record) = rank.names.at(slot) else { return };
        let copies = rank.names.copies(record, place.tier);
        let copies = match self.copy_mode {
            CopyMode::Counted => copies.saturating_add(1),
            CopyMode::Set => 1,
        };
        rank.names.set_copies(slot, place.tier, copies);
        let Some(after) = rank.names.at(slot).map(Entry::from_record) else { return };
        rank.change_digest(name, &before, &after);
    }

    /// Adds a new name with one copy. If the inventory is full, marks the rank as incomplete instead.
    fn store_new(&mut self, number: DpRank, name: BlockName, place: Place) {
        let is_full = self.held_blocks >= self.held_blocks_max;
        let rank = self.rank(number);
        if is_full {
            rank.incomplete = true;
            return;
        }
        let slot = rank.names.insert(Record::new(name, place.parent, place.local));
        rank.names.set_copies(slot, place.tier, 1);
        rank.digest.add(place.tier, block_digest(name, place.local));
        self.held_blocks += 1;
    }

    /// Removes one copy of a name in a tier, or all copies if `all_copies`. Returns early if the tier has no copy.
    fn remove(&mut self, number: DpRank, name: BlockName, tier: Tier, all_copies: bool) {
        let Some(rank) = self.ranks.get(&number) else { return };
        let Some(slot) = rank.names.find(name) else { return };
        let copies = rank.names.at(slot).map_or(0, |record| rank.names.copies(record, tier));
        if copies == 0 {
            return;
        }
        self.record_change(number, slot);
        let left = match self.copy_mode {
            CopyMode::Counted if !all_copies => copies - 1,
            CopyMode::Counted | CopyMode::Set => 0,
        };
        let Some(rank) = self.ranks.get_mut(&number) else { return };
        let local = rank.names.at(slot).and_then(Record::local);
        if left == 0 {
            rank.digest.take(tier, block_digest(name, local));
        }
        if rank.names.set_copies(slot, tier, left) {
            return;
        }
        let moved = rank.names.remove(slot);
        let was_read = slot < rank.position;
        rank.position = rank.position.min(rank.names.len());
        self.held_blocks -= 1;
        if moved && was_read {
            // The last record moves to a position that the dump has read.
            self.note_unread(number, slot);
        }
    }

    fn clear(&mut self, number: DpRank) {
        let Some(rank) = self.ranks.remove(&number) else { return };
        self.held_blocks -= rank.names.len();
        self.abort(DumpAbort::Cleared);
    }

    /// Removes all copies in a tier of a rank.
    fn clear_tier(&mut self, number: DpRank, tier: Tier) {
        let Some(rank) = self.ranks.get(&number) else { return };
        let records = (0..rank.names.len()).filter_map(|slot| rank.names.at(slot));
        let held = records.filter(|record| rank.names.copies(record, tier) > 0);
        let names: Vec<BlockName> = held.map(Record::name).collect();
        for name in names {
            self.remove(number, name, tier, true);
        }
    }

    /// Records that a name changes which the dump in progress has read.
    fn record_change(&mut self, number: DpRank, slot: usize) {
        let Some(dump) = self.scan.as_ref().map(Scan::mark_number) else { return };
        self.note_if(number, slot, |record| record.read_by == dump);
    }

    /// Records a name that the dump in progress would otherwise miss.
    fn note_unread(&mut self, number: DpRank, slot: usize) {
        let Some(dump) = self.scan.as_ref().map(Scan::mark_number) else { return };
        self.note_if(number, slot, |record| {
            let unread = record.read_by != dump;
            record.read_by = dump;
            unread
        });
    }

    /// Marks a record as changed for the dump in progress, if `is_due` requires it. Aborts the dump after too many
    /// changed names.
    fn note_if(&mut self, number: DpRank, slot: usize, is_due: impl FnOnce(&mut Record) -> bool) {
        let Some(rank) = self.ranks.get_mut(&number) else { return };
        let Some(record) = rank.names.at_mut(slot) else { return };
        let name = record.name();
        if is_due(record) && rank.dirty.insert(name) {
            let dirty_names = self.scan.as_mut().map_or(0, Scan::count_dirty);
            if dirty_names > DUMP_DIRTY_NAMES_MAX {
                self.abort(DumpAbort::TooManyChanges);
            }
        }
    }

    /// Aborts the dump in progress, if there is one.
    pub(super) fn abort(&mut self, reason: DumpAbort) {
        if let Some(scan) = self.scan.take() {
            self.aborted = Some((scan.id, reason));
            self.forget_scan();
        }
    }

    /// Frees the changes recorded for a dump.
    pub(super) fn forget_scan(&mut self) {
        for rank in self.ranks.values_mut() {
            rank.position = 0;
            rank.dirty = FxHashSet::default();
        }
    }

    /// State of names at a rank, held or not.
    pub(super) fn held(&self, rank: DpRank, names: &[BlockName]) -> Vec<HeldBlock> {
        let Some(rank) = self.ranks.get(&rank) else { return Vec::new() };
        names.iter().map(|&name| Self::state(&rank.names, name)).collect()
    }

    /// State of a name, held or not.
    pub(super) fn state(names: &Names, name: BlockName) -> HeldBlock {
        let gone = HeldBlock { name, parent: None, local: None, copies: [0; Tier::COUNT] };
        let record = names.find(name).and_then(|slot| names.at(slot));
        record.map_or(gone, |record| names.held(record))
    }
}
