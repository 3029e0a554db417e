//! Dumps: all blocks of a worker, read in chunks while events are applied.
//!
//! A dump reads the worker's pages chunk by chunk under its owner's read lock. Meanwhile the rank notes
//! changed names. Unchanged names keep their slots, so the dump finds them. At its end, the dump adds the
//! absolute state of the changed names, read at one moment together with the sources' cursors. Later records
//! replace earlier ones. Together they are the worker's exact state at that moment.

use crate::error::IndexError;
use crate::holder::Holder;
use crate::index::Index;
use crate::record::Record;
use crate::sets::HolderIndex;
use crate::slots::{NONE, PAGE_SLOTS, Page, Slot};
use crate::source::SourceId;
use crate::trie::Trie;
use kvasir_proto::types::{
    BlockName, CopyMode, DpRank, LocalHash, NameMeaning, SourceStatus, Tier, WorkerId,
};
use roaring::RoaringBitmap;
use rustc_hash::FxHashSet;
use std::borrow::Cow;
use std::collections::VecDeque;
use std::sync::Arc;

/// Absolute state of one name at one source.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct DumpRecord {
    /// The rank.
    pub rank: DpRank,
    /// The source.
    pub source: SourceId,
    /// The name.
    pub name: BlockName,
    /// Name of the preceding block, as announced.
    pub parent: Option<BlockName>,
    /// Local hash; `None` if the name was announced without tokens.
    pub local: Option<LocalHash>,
    /// Whether the chain from the name to the root is known.
    pub placed: bool,
    /// Copies by tier; all 0 if the name was removed.
    pub copies: [u32; Tier::COUNT],
}

/// Status of one source at the end of the dump.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DumpSourceEnd {
    /// The source.
    pub source: SourceId,
    /// Name of the source.
    pub name: Arc<str>,
    /// State and cursor of the source.
    pub status: SourceStatus,
    /// Whether the index lacks blocks that the source announced, because they were rejected or evicted.
    pub incomplete: bool,
    /// How the source counts repeated announcements.
    pub copy_mode: CopyMode,
    /// Dumped ranks that the source feeds.
    pub ranks: Vec<DpRank>,
    /// Meanings of the source's names besides their tokens, for the ranks of the dump.
    pub meanings: Vec<(DpRank, BlockName, NameMeaning)>,
}

/// The last records of a dump, with the status of the sources.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DumpTail {
    /// Names that changed during the dump.
    pub records: Vec<DumpRecord>,
    /// The sources that fed the dumped ranks.
    pub ends: Vec<DumpSourceEnd>,
}

/// Progress of the dump in one rank.
#[derive(Debug)]
struct RankScan {
    holder: HolderIndex,
    rank: DpRank,
    /// Next part of the pages to read.
    page_part: usize,
    /// Pages of the previous part that are not yet read.
    pages: Vec<Page>,
    /// Slots of the previous page that are not yet read.
    slots: Vec<Slot>,
    /// Slots that are read, or on the stack to be read.
    read_slots: RoaringBitmap,
    /// Next part of the bits from which to read names of further groups, after all slots.
    bit_part: usize,
    /// Next part of the records from which to read names without a slot, after all bits.
    part: usize,
    /// Parked names of the previous part that are not yet read.
    parked: Vec<BlockName>,
    /// Parked names that are read.
    read: FxHashSet<BlockName>,
}

/// An item to read; ancestors are on top of the stack.
#[derive(Debug, Clone, Copy)]
enum Next {
    Slot(Slot),
    Parked(BlockName),
}

/// A running dump. End it with [`Index::finish_dump`] or [`Index::cancel_dump`].
#[derive(Debug)]
pub struct DumpScan {
    dump: u64,
    worker: WorkerId,
    ranks: Vec<RankScan>,
    current: usize,
    stack: Vec<Next>,
    pending: VecDeque<DumpRecord>,
}

impl Index {
    /// Begins a dump of a worker, or of one rank.
    ///
    /// # Errors
    /// If the worker or rank is unknown, or too many of its dumps are running.
    pub fn begin_dump(
        &mut self,
        worker: &WorkerId,
        rank: Option<DpRank>,
    ) -> Result<DumpScan, IndexError> {
        let unknown = || IndexError::UnknownWorker { worker: worker.clone() };
        let known = self.workers.get(worker).ok_or_else(&unknown)?;
        let wanted = |at: &&(DpRank, HolderIndex)| rank.is_none_or(|rank| rank == at.0);
        let holders: Vec<HolderIndex> =
            known.ranks.iter().filter(wanted).map(|&(_, holder)| holder).collect();
        if holders.is_empty() {
            let no_rank = |rank| IndexError::UnknownRank { worker: worker.clone(), rank };
            return Err(rank.map_or_else(unknown, no_rank));
        }
        let limit = self.limits.dumps_max;
        let busy = |&at: &HolderIndex| {
            self.holder_at(at).is_none_or(|holder| holder.dumps().len() >= limit)
        };
        if holders.iter().any(busy) {
            return Err(IndexError::TooMany { worker: worker.clone(), what: "dumps", limit });
        }
        let dump = self.next_dump;
        self.next_dump += 1;
        let mut ranks = Vec::with_capacity(holders.len());
        for at in holders {
            if let Some(Some(holder)) = self.holders.get_mut(at as usize) {
                holder.dumps_mut().begin_dump(dump, self.limits.dirty_names_max);
                ranks.push(RankScan {
                    holder: at,
                    rank: holder.rank(),
                    page_part: 0,
                    pages: Vec::new(),
                    slots: Vec::new(),
                    read_slots: RoaringBitmap::new(),
                    bit_part: 0,
                    part: 0,
                    parked: Vec::new(),
                    read: FxHashSet::default(),
                });
            }
        }
        let stack = Vec::new();
        let pending = VecDeque::new();
        Ok(DumpScan { dump, worker: worker.clone(), ranks, current: 0, stack, pending })
    }

    /// Appends up to `records_max` further records to `out`. Returns `false` after the last.
    ///
    /// # Errors
    /// If a concurrent change aborted the dump.
    pub fn dump_chunk(
        &self,
        scan: &mut DumpScan,
        records_max: usize,
        out: &mut Vec<DumpRecord>,
    ) -> Result<bool, IndexError> {
        for rank in &scan.ranks {
            self.dumped_holder(&scan.worker, scan.dump, rank.holder)?;
        }
        let end = out.len() + records_max.max(1);
        loop {
            while out.len() < end {
                match scan.pending.pop_front() {
                    Some(record) => out.push(record),
                    None => break,
                }
            }
            if out.len() == end {
                return Ok(true);
            }
            let Some(rank) = scan.ranks.get_mut(scan.current) else {
                return Ok(false);
            };
            let holder = self.dumped_holder(&scan.worker, scan.dump, rank.holder)?;
            if scan.stack.is_empty() {
                self.stack_ancestors(holder, rank, &mut scan.stack);
            }
            match scan.stack.pop() {
                Some(Next::Slot(slot)) => self.read_slot(holder, slot, &mut scan.pending),
                Some(Next::Parked(name)) => {
                    read_record(&self.trie, holder, name, &mut scan.pending)
                }
                None => scan.current += 1,
            }
        }
    }

    /// The holder, unless this dump of the holder was aborted.
    fn dumped_holder(
        &self,
        worker: &WorkerId,
        dump: u64,
        holder: HolderIndex,
    ) -> Result<&Holder, IndexError> {
        let aborted = |reason| IndexError::DumpAborted { worker: worker.clone(), reason };
        let holder = self.holder_at(holder).ok_or_else(|| aborted("the worker was removed"))?;
        holder.dumps().names(dump).map_err(aborted)?;
        Ok(holder)
    }

    /// Pushes an unread block and its unread ancestors onto the stack.
    fn stack_ancestors(&self, holder: &Holder, rank: &mut RankScan, stack: &mut Vec<Next>) {
        while let Some(slot) = self.next_slot(holder, rank) {
            let mut slot = slot;
            while slot != NONE && self.is_held(holder, slot) && rank.read_slots.insert(slot) {
                stack.push(Next::Slot(slot));
                slot = self.trie.parent(slot);
            }
            if !stack.is_empty() {
                return;
            }
        }
        while let Some(name) = next_without_slot(&self.trie, holder, rank) {
            let mut name = Some(name);
            while let Some(at) =
                name.filter(|at| holder.has_no_slot(&self.trie, *at) && rank.read.insert(*at))
            {
                stack.push(Next::Parked(at));
                name = holder.record(&self.trie, at).and_then(|record| record.parent);
            }
            if !stack.is_empty() {
                return;
            }
        }
    }

    /// The next slot of the current page, or of the next page with slots.
    fn next_slot(&self, holder: &Holder, rank: &mut RankScan) -> Option<Slot> {
        while rank.slots.is_empty() {
            let Some(page) = rank.pages.pop() else {
                rank.pages.extend(holder.pages(rank.page_part)?);
                rank.page_part += 1;
                continue;
            };
            let slots = page * PAGE_SLOTS..(page + 1) * PAGE_SLOTS;
            rank.slots.extend(slots.rev().filter(|&slot| self.is_held(holder, slot)));
        }
        rank.slots.pop()
    }

    fn is_held(&self, holder: &Holder, slot: Slot) -> bool {
        self.trie.slots.is_used(slot) && self.trie.holds_any(slot, holder.index())
    }

    /// Reads all names of a slot that the rank holds.
    fn read_slot(&self, holder: &Holder, slot: Slot, out: &mut VecDeque<DumpRecord>) {
        if !self.is_held(holder, slot) {
            return;
        }
        match holder.records().names_at(slot) {
            Some(names) => {
                names.iter().for_each(|&name| read_record(&self.trie, holder, name, out))
            }
            None => {
                let record = holder.plain_record(&self.trie, slot, 0);
                out.extend(by_source(holder, self.trie.slots.name(slot), &record));
            }
        }
    }

    /// Ends a dump. Returns the absolute state of every name that changed since its beginning, and the
    /// cursors at the same moment.
    ///
    /// # Errors
    /// If a concurrent change aborted the dump.
    pub fn finish_dump(&mut self, scan: DumpScan) -> Result<DumpTail, IndexError> {
        let check = scan.ranks.iter().try_for_each(|rank| {
            self.dumped_holder(&scan.worker, scan.dump, rank.holder).map(|_| ())
        });
        let mut records = Vec::new();
        let mut ends = Vec::new();
        if check.is_ok() {
            let known = self.workers.get(&scan.worker);
            for &id in known.into_iter().flat_map(|worker| &worker.sources) {
                let Some(source) = self.sources.get(&id) else {
                    continue;
                };
                let fed = |rank: &&RankScan| source.feeds(rank.holder);
                let mut ranks = Vec::new();
                for rank in scan.ranks.iter().filter(fed) {
                    self.read_dirty(scan.dump, rank, id, &mut records);
                    ranks.push(rank.rank);
                }
                if !ranks.is_empty() {
                    let meanings = source.meanings.entries().filter(|at| ranks.contains(&at.0));
                    let meanings = meanings.collect();
                    ends.push(DumpSourceEnd {
                        source: id,
                        name: Arc::clone(source.name()),
                        status: SourceStatus {
                            reasons: self.lasting_reasons(id),
                            ..source.status().clone()
                        },
                        incomplete: source.is_incomplete(),
                        copy_mode: source.mode(),
                        ranks,
                        meanings,
                    });
                }
            }
        }
        self.cancel_dump(scan);
        check.map(|()| DumpTail { records, ends })
    }

    /// Reads the names that changed since the dump began, in order. A removed name becomes a record without copies.
    fn read_dirty(&self, dump: u64, rank: &RankScan, source: SourceId, out: &mut Vec<DumpRecord>) {
        let Some(holder) = self.holder_at(rank.holder) else {
            return;
        };
        let dirty = holder.dumps().names(dump).ok();
        let mut names: Vec<BlockName> = dirty.into_iter().flatten().copied().collect();
        names.sort_unstable();
        for name in names {
            let spelled = holder.record(&self.trie, name).map(Cow::into_owned);
            let plain = || {
                let slot =
                    self.trie.named(name).filter(|&slot| holder.is_plain(&self.trie, slot))?;
                Some(holder.plain_record(&self.trie, slot, 0))
            };
            let record = spelled.or_else(plain);
            out.push(match &record {
                Some(record) => as_dumped(rank.rank, source, name, record),
                None => DumpRecord {
                    rank: rank.rank,
                    source,
                    name,
                    parent: None,
                    local: None,
                    placed: false,
                    copies: [0; Tier::COUNT],
                },
            });
        }
    }

    /// Abandons a dump.
    pub fn cancel_dump(&mut self, scan: DumpScan) {
        for rank in scan.ranks {
            if let Some(Some(holder)) = self.holders.get_mut(rank.holder as usize) {
                holder.dumps_mut().end_dump(scan.dump);
            }
        }
    }
}

/// The next name without a slot of the current part of the bits or records, or of the next part with such names.
fn next_without_slot(trie: &Trie, holder: &Holder, rank: &mut RankScan) -> Option<BlockName> {
    while rank.parked.is_empty() {
        if let Some(part) = holder.bits().part(rank.bit_part) {
            rank.parked.extend(part.map(|block| Holder::name_of_bit(trie, block)));
            rank.bit_part += 1;
            continue;
        }
        rank.parked.extend(holder.records().without_slot(rank.part)?);
        rank.part += 1;
    }
    rank.parked.pop()
}

fn read_record(trie: &Trie, holder: &Holder, name: BlockName, out: &mut VecDeque<DumpRecord>) {
    if let Some(record) = holder.record(trie, name) {
        out.extend(by_source(holder, name, &record));
    }
}

/// One record per source that has the name.
fn by_source<'a>(
    holder: &'a Holder,
    name: BlockName,
    record: &'a Record,
) -> impl Iterator<Item = DumpRecord> + use<'a> {
    let mut sources: smallvec::SmallVec<[SourceId; 2]> =
        record.copies.iter().map(|copies| copies.source).collect();
    sources.sort_unstable();
    sources.dedup();
    sources.into_iter().map(move |source| as_dumped(holder.rank(), source, name, record))
}

/// The record of a name, with the copies of one source.
fn as_dumped(rank: DpRank, source: SourceId, name: BlockName, record: &Record) -> DumpRecord {
    DumpRecord {
        rank,
        source,
        name,
        parent: record.parent,
        local: record.local,
        placed: record.slot.is_some(),
        copies: record.by_tier(source),
    }
}
