//! The index and its one entry for events.

use crate::error::IndexError;
use crate::holder::Holder;
use crate::limits::Limits;
use crate::record::Announcement;
use crate::registry::{Source, SourceId, Worker};
use crate::shed::ShedCursor;
use crate::trie::Trie;
use kvasir_proto::types::{
    BlockCounts, BlockName, BlockOutcome, CopyMode, DpRank, KvEvent, WorkerId,
};
use std::collections::BTreeMap;

/// Index of one partition; see the crate's documentation for what it promises.
#[derive(Debug, Default)]
pub struct Index {
    pub(crate) limits: Limits,
    pub(crate) trie: Trie,
    pub(crate) holders: Vec<Option<Box<Holder>>>,
    pub(crate) free_holders: Vec<u32>,
    /// One bit a rank, by its index: it is there.
    pub(crate) present: Vec<u64>,
    /// Place of each rank, by its index, among all in order of (worker, rank).
    pub(crate) order: Vec<u32>,
    /// The indexes of all ranks in that order.
    pub(crate) ordered: Vec<u32>,
    /// Whether the order is that of the indexes.
    pub(crate) in_order: bool,
    pub(crate) workers: BTreeMap<WorkerId, Worker>,
    pub(crate) sources: BTreeMap<SourceId, Source>,
    pub(crate) next_source: u32,
    pub(crate) next_dump: u64,
    /// Bytes of all ranks.
    pub(crate) holder_bytes: usize,
    /// Parked names of all ranks.
    pub(crate) parked: usize,
    pub(crate) shedding: ShedCursor,
}

impl Index {
    /// An empty index.
    #[must_use]
    pub fn new(limits: Limits) -> Self {
        Self { limits, ..Self::default() }
    }

    /// Applies one event of a source to one rank, as a whole: owners split long events, and carry
    /// out clears with [`Index::clear_source`] in steps.
    ///
    /// # Errors
    /// If the source is not known or its worker has too many ranks.
    pub fn apply(
        &mut self,
        source: SourceId,
        rank: DpRank,
        event: &KvEvent,
    ) -> Result<BlockCounts, IndexError> {
        let mut counts = BlockCounts::default();
        match event {
            KvEvent::Stored { parent, tier, blocks } => {
                let by = self.announcement(source, *tier)?;
                self.trie.tick();
                counts = self.change(source, rank)?.store(by, *parent, blocks);
            }
            KvEvent::StoredNames { tier, names } => {
                let by = self.announcement(source, *tier)?;
                self.trie.tick();
                let mut change = self.change(source, rank)?;
                names.iter().for_each(|&name| counts.add(change.store_name(by, name)));
            }
            KvEvent::Removed { tier, names } => {
                let by = self.announcement(source, *tier)?;
                counts = self.change(source, rank)?.remove(by, names);
            }
            KvEvent::Gone { tier, names } => {
                let by = self.announcement(source, *tier)?;
                let by = Announcement { mode: CopyMode::Set, ..by };
                counts = self.change(source, rank)?.remove(by, names);
            }
            KvEvent::Cleared => {
                let removed = self.clear_source(source, Some(rank), usize::MAX)?.removed;
                counts.add(if removed > 0 { BlockOutcome::Applied } else { BlockOutcome::Noop });
            }
        }
        if counts.rejected > 0 {
            self.mark_incomplete(source);
        }
        if *event != KvEvent::Cleared {
            let holder = self.rank_of(source, rank)?;
            self.recount(holder);
            if counts.shed > 0 {
                self.mark_short(holder, counts.shed);
            }
        }
        Ok(counts)
    }

    /// The rank that a source's event changes.
    pub(crate) fn change(
        &mut self,
        source: SourceId,
        rank: DpRank,
    ) -> Result<RankChange<'_>, IndexError> {
        let holder = self.rank_of(source, rank)?;
        let Some(Some(holder)) = self.holders.get_mut(holder as usize) else {
            return Err(IndexError::UnknownSource { source_id: source });
        };
        Ok(RankChange {
            trie: &mut self.trie,
            holder,
            sources: &mut self.sources,
            limits: &self.limits,
        })
    }
}

/// One rank under change, with all it shares with others.
#[derive(Debug)]
pub(crate) struct RankChange<'a> {
    pub(crate) trie: &'a mut Trie,
    pub(crate) holder: &'a mut Holder,
    pub(crate) sources: &'a mut BTreeMap<SourceId, Source>,
    pub(crate) limits: &'a Limits,
}

impl RankChange<'_> {
    /// Loss epoch of the source that plain slots belong to.
    pub(crate) fn primary_epoch(&self) -> u32 {
        let primary = self.holder.primary.and_then(|id| self.sources.get(&id));
        primary.map_or(0, |source| source.epoch)
    }

    /// Counts (name, tier) keys that a source gained.
    pub(crate) fn add_keys(&mut self, source: SourceId, keys: u64) {
        if let Some(source) = self.sources.get_mut(&source) {
            source.keys += keys;
        }
    }

    /// Counts (name, tier) keys that a source lost.
    pub(crate) fn drop_keys(&mut self, source: SourceId, keys: u64) {
        if let Some(source) = self.sources.get_mut(&source) {
            source.keys -= keys;
        }
    }

    pub(crate) fn settle(&mut self, slot: u32) {
        let epoch = self.primary_epoch();
        self.holder.settle(self.trie, slot, epoch);
    }

    /// Makes sure that a slot's names are spelled out, if this rank holds it at all.
    pub(crate) fn spell_out(&mut self, slot: u32) {
        if self.holder.is_plain(self.trie, slot) {
            let epoch = self.primary_epoch();
            self.holder.spell_out(self.trie, slot, epoch);
        }
    }

    /// Takes a record out of its rank; the slot it was at, if any, is to be settled next.
    pub(crate) fn take_record(&mut self, name: BlockName) -> Option<u32> {
        let record = self.holder.records.remove(name)?;
        for copies in &record.copies {
            self.lose(copies.source, copies.tier, (name, record.local));
        }
        self.holder.touch(name);
        let Some(slot) = record.slot else {
            self.unpark(name, record.parent);
            return None;
        };
        if let Some(names) = self.holder.slot_names.get_mut(slot) {
            names.retain(|at| *at != name);
        }
        Some(slot)
    }

    /// Ends the waiting of a parked name.
    pub(crate) fn unpark(&mut self, name: BlockName, parent: Option<BlockName>) {
        self.holder.parked -= 1;
        self.stop_waiting(name, parent);
    }

    pub(crate) fn stop_waiting(&mut self, name: BlockName, parent: Option<BlockName>) {
        let Some(parent) = parent else {
            return;
        };
        let Some(names) = self.holder.waiting.get_mut(parent) else {
            return;
        };
        names.retain(|at| *at != name);
        if names.is_empty() {
            self.holder.waiting.remove(parent);
        }
    }
}
