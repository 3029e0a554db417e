//! Restores a worker into an index in slices.

use super::order::{Above, Item, Order, What, order};
use super::place::{Landed, SourceIds};
use super::saved::Saved;
use crate::error::{DamagedImage, IndexError};
use crate::image::{MeaningImage, NameImage, RunImage, SourceImage};
use crate::index::Index;
use crate::rank::RankChange;
use crate::record::Record;
use crate::sets::HolderIndex;
use crate::slots::{NONE, PreparedChunk, Slot};
use crate::source::SourceId;
use kvasir_proto::types::{
    BlockName, DpRank, NameChange, SourceState, SourceStatus, StoredBlock, WorkerId,
};
use std::sync::Arc;
use std::{mem, vec};

/// A running restore of a worker.
#[derive(Debug)]
pub struct Restore {
    worker: WorkerId,
    sources: Vec<SourceImage>,
    ids: SourceIds,
    ranks: Vec<RankSteps>,
    /// Memory for the worker's blocks.
    prepared: Vec<PreparedChunk>,
    current: usize,
    stage: Stage,
    restored: Restored,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    New,
    UnderWay,
    Done,
}

/// Result of one slice of a restore.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RestoreStep {
    /// Whether the worker is restored. If not, call again.
    pub done: bool,
    /// Number of blocks, names and holes read.
    pub read: usize,
}

/// Number of a worker's blocks by outcome.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Restored {
    /// Placed, as before.
    pub placed: u64,
    /// Parked, as before.
    pub parked: u64,
    /// Parked, because their ancestors are not in the images, or a limit is reached. The worker's sources are
    /// partial.
    pub unplaced: u64,
    /// Dropped, because a limit is reached or the images are contradictory. The worker's sources are partial.
    pub dropped: u64,
    /// Rejected, because other blocks of the rank were meanwhile evicted for the byte budget.
    pub shed: u64,
}

/// Progress of the restore in one rank.
#[derive(Debug)]
struct RankSteps {
    rank: DpRank,
    /// The sources that feed the rank. Other sources' copies are not restored, because a clear would not
    /// remove them.
    ids: SourceIds,
    /// Id of the primary source in the images.
    primary: Option<SourceId>,
    shed_blocks: u64,
    /// Ids in the images of the sources that lack evicted blocks.
    short: Vec<SourceId>,
    items: vec::IntoIter<Item>,
    parked: vec::IntoIter<NameImage>,
    displaced: vec::IntoIter<NameImage>,
    meanings: vec::IntoIter<MeaningImage>,
    /// Slots of the placed items.
    landed: Vec<Landed>,
    /// Holes that have no block below them yet: items and slots.
    pending: Vec<(usize, Slot)>,
    holder: HolderIndex,
    /// Number of the rank's placed and parked blocks after the last slice. If it has changed since, slots may
    /// have other meanings.
    left: (u64, usize),
}

impl Restore {
    /// Sorts the images of a worker, and prepares memory for its blocks. This takes time, but does not access
    /// the index.
    ///
    /// # Errors
    /// If the worker has no source, or two pages have the same slots.
    pub fn new(saved: Saved) -> Result<Self, DamagedImage> {
        let Saved { worker, sources, ranks: saved } = saved;
        if sources.is_empty() {
            return Err(DamagedImage { worker, field: "worker", what: "has no source" });
        }
        let runs = saved.values().flat_map(|rank| &rank.runs);
        let prepared = PreparedChunk::for_slots(runs.map(|run| run.blocks.len()).sum());
        let mut ranks = Vec::with_capacity(saved.len());
        for (rank, mut saved) in saved {
            let primary = saved.primary;
            let shed_blocks = saved.shed_blocks;
            let short = mem::take(&mut saved.short);
            let meanings = mem::take(&mut saved.meanings).into_iter();
            let Some(Order { items, parked, displaced }) = order(saved) else {
                return Err(DamagedImage { worker, field: "page", what: "is there twice" });
            };
            ranks.push(RankSteps {
                rank,
                ids: SourceIds::new(),
                primary,
                shed_blocks,
                short,
                landed: Vec::with_capacity(items.len()),
                items: items.into_iter(),
                parked: parked.into_iter(),
                displaced: displaced.into_iter(),
                meanings,
                pending: Vec::new(),
                holder: HolderIndex::MAX,
                left: (0, 0),
            });
        }
        Ok(Self {
            worker,
            sources,
            ids: SourceIds::new(),
            ranks,
            prepared,
            current: 0,
            stage: Stage::New,
            restored: Restored::default(),
        })
    }

    /// The worker.
    #[must_use]
    pub const fn worker(&self) -> &WorkerId {
        &self.worker
    }

    /// Number of the worker's blocks so far, by outcome.
    #[must_use]
    pub const fn restored(&self) -> Restored {
        self.restored
    }

    /// Adds about `budget` further blocks, names and holes to an index, which must be the same in every call.
    /// At most 64 more, plus as many holes as are below one another. The first slice creates the worker's
    /// sources. They are catching up at best until the last slice; do not apply their events until then.
    ///
    /// # Errors
    /// If the sources cannot be added, in which case the index is unchanged, or one was removed meanwhile.
    pub fn step(&mut self, index: &mut Index, budget: usize) -> Result<RestoreStep, IndexError> {
        match self.stage {
            Stage::New => self.add_sources_and_ranks(index)?,
            Stage::UnderWay => {
                self.ids.iter().try_for_each(|&(_, id)| index.source(id).map(drop))?;
            }
            Stage::Done => return Ok(RestoreStep { done: true, read: 0 }),
        }
        self.stage = Stage::UnderWay;
        let budget = budget.max(1);
        let mut read = 0;
        while let Some(rank) = self.ranks.get_mut(self.current) {
            if read >= budget {
                return Ok(RestoreStep { done: false, read });
            }
            index.trie.slots.swap_prepared(&mut self.prepared);
            read += rank.step(index, budget - read, &mut self.restored);
            index.trie.slots.swap_prepared(&mut self.prepared);
            if rank.is_done() {
                self.current += 1;
            }
        }
        self.finish(index);
        self.stage = Stage::Done;
        Ok(RestoreStep { done: true, read })
    }

    /// Adds the sources and ranks.
    fn add_sources_and_ranks(&mut self, index: &mut Index) -> Result<(), IndexError> {
        let added = self.add_sources(index).and_then(|()| {
            let added = || self.sources.iter().zip(&self.ids);
            self.ranks.iter_mut().try_for_each(|rank| {
                let feeding = added().filter(|(source, _)| source.ranks.contains(&rank.rank));
                rank.ids = feeding.map(|(_, &ids)| ids).collect();
                rank.begin_rank(index, &self.worker)
            })
        });
        if added.is_err() {
            for (_, id) in self.ids.drain(..) {
                index.remove_source(id)?;
            }
        }
        added
    }

    /// Adds the saved sources and their ranks. The sources are marked as changing until the restore is finished.
    fn add_sources(&mut self, index: &mut Index) -> Result<(), IndexError> {
        for SourceImage { id, name, copy_mode, ranks, .. } in &self.sources {
            for (number, &rank) in ranks.iter().enumerate() {
                if let Some(&(_, added)) = self.ids.last().filter(|_| number > 0) {
                    index.rank_of(added, rank)?;
                } else {
                    let added = index.add_source(&self.worker, name, rank, *copy_mode)?;
                    index.begin_change(added);
                    self.ids.push((*id, added));
                }
            }
        }
        Ok(())
    }

    /// Sets the final status of the sources.
    fn finish(&self, index: &mut Index) {
        for rank in &self.ranks {
            let short = |id: &SourceId| {
                self.ids.iter().any(|(old, new)| new == id && rank.short.contains(old))
            };
            index.mark_sources_short(rank.holder, rank.shed_blocks, short);
        }
        let is_damaged = self.restored.unplaced + self.restored.dropped > 0;
        for (source, &(_, id)) in self.sources.iter().zip(&self.ids) {
            index.end_change(id);
            index.set_status(
                id,
                SourceStatus {
                    state: source.status.state.max(SourceState::CatchingUp),
                    applied: source.status.applied,
                    head: source.status.head,
                    past: Arc::clone(&source.status.past),
                    learned: Arc::clone(&source.status.learned),
                    reasons: Arc::clone(&source.status.reasons),
                    ..SourceStatus::default()
                },
            );
            if source.incomplete || is_damaged {
                index.mark_incomplete(id);
            }
            if source.suspect {
                index.mark_suspect(id);
            }
        }
    }
}

impl RankSteps {
    fn is_done(&self) -> bool {
        self.has_no_blocks() && self.meanings.as_slice().is_empty()
    }

    fn has_no_blocks(&self) -> bool {
        self.items.as_slice().is_empty()
            && self.parked.as_slice().is_empty()
            && self.displaced.as_slice().is_empty()
    }

    /// Creates the rank, and remembers its present numbers of blocks.
    fn begin_rank(&mut self, index: &mut Index, worker: &WorkerId) -> Result<(), IndexError> {
        self.holder = index.make_rank(worker, self.rank)?;
        if let Some(change) = index.change_of(self.holder) {
            if let Some(primary) = self.primary() {
                change.holder.adopt_source(primary);
            }
            self.left = (change.holder.placed(), change.holder.parked());
        }
        Ok(())
    }

    /// Id in the index of the source of the rank's plain blocks.
    fn primary(&self) -> Option<SourceId> {
        let known = self.ids.iter().find(|(old, _)| Some(*old) == self.primary);
        known.map(|&(_, id)| id)
    }

    /// Places about `budget` further entries. Returns the number of entries read.
    fn step(&mut self, index: &mut Index, budget: usize, restored: &mut Restored) -> usize {
        if self.has_no_blocks() {
            return self.restore_meanings(index, budget);
        }
        let Some(mut change) = index.change_of(self.holder) else {
            return self.skip_rest();
        };
        if (change.holder.placed(), change.holder.parked()) != self.left {
            let shed = self.skip_rest();
            restored.shed += shed as u64;
            index.mark_short(self.holder, shed as u64);
            return shed.min(budget);
        }
        let mut read = 0;
        while read < budget || !self.pending.is_empty() {
            if let Some(item) = self.items.next() {
                read += self.place(&mut change, item, restored);
            } else if let Some(name) = self.parked.next() {
                let record = change.record_from(&name, &self.ids);
                let parked = change.restore_parked(name.name, record);
                *(if parked { &mut restored.parked } else { &mut restored.dropped }) += 1;
                read += 1;
            } else if let Some(name) = self.displaced.next() {
                let record = change.record_from(&name, &self.ids);
                unplace(&mut change, name.name, record, restored);
                read += 1;
            } else {
                break;
            }
        }
        self.left = (change.holder.placed(), change.holder.parked());
        index.recount(self.holder);
        read
    }

    /// Restores up to `most` further meanings of names. Returns their number.
    fn restore_meanings(&mut self, index: &mut Index, most: usize) -> usize {
        let mut read = 0;
        for MeaningImage { source, name, meaning } in self.meanings.by_ref().take(most) {
            read += 1;
            if let Some(&(_, id)) = self.ids.iter().find(|(old, _)| *old == source) {
                index.change_meanings(id, &[NameChange { rank: self.rank, name, meaning }]);
            }
        }
        read
    }

    /// Skips the remaining items. Returns the number of blocks.
    fn skip_rest(&mut self) -> usize {
        let items = mem::take(&mut self.items).map(|item| match item.what {
            What::Run(run) => run.blocks.len(),
            What::Names(..) => 1,
            What::Hole(_) => 0,
        });
        let names = mem::take(&mut self.parked).len() + mem::take(&mut self.displaced).len();
        items.sum::<usize>() + names
    }

    /// Places an item, or parks it. Returns the number of blocks read.
    fn place(&mut self, change: &mut RankChange<'_>, item: Item, restored: &mut Restored) -> usize {
        let at = match item.above {
            Above::Root => Some(NONE),
            Above::Nowhere => None,
            Above::At { item, offset } => {
                self.landed.get(item as usize).and_then(|landed| landed.slot(offset))
            }
        };
        let (landed, read) = match item.what {
            What::Hole(hole) => {
                let depth_max = change.limits.chain_blocks_max;
                let landed = at.filter(|&at| change.trie.depth(at) < depth_max).map(|at| {
                    let name = hole.name;
                    let local = hole.local;
                    let slot = change.restore_hole(at, StoredBlock { name, local });
                    self.pending.push((self.landed.len(), slot));
                    Landed::at(slot)
                });
                self.landed.push(landed.unwrap_or_default());
                return 1;
            }
            What::Run(run) => {
                change.trie.tick();
                let source = self.primary();
                let landed = match at.zip(source) {
                    Some((at, source)) => change.restore_run(source, at, item.parent, &run),
                    None => Landed::default(),
                };
                let placed = landed.len();
                restored.placed += placed as u64;
                unplace_run(change, source, item.parent, &run, placed, restored);
                (landed, run.blocks.len())
            }
            What::Names(names, own) => {
                let mut landed = None;
                for image in &names {
                    let record = change.record_from(image, &self.ids);
                    let slot = at.and_then(|at| change.restore_name(at, own, image.name, record));
                    if slot.is_some() {
                        restored.placed += 1;
                    } else {
                        let record = change.record_from(image, &self.ids);
                        unplace(change, image.name, record, restored);
                    }
                    landed = landed.or(slot);
                }
                (landed.map(Landed::at).unwrap_or_default(), names.len())
            }
        };
        self.settle_holes(change, landed.len() > 0);
        self.landed.push(landed);
        read
    }

    /// Ends the pending holes. Frees them if no block was placed below.
    fn settle_holes(&mut self, change: &mut RankChange<'_>, is_held: bool) {
        if let Some(&(_, slot)) = self.pending.last().filter(|_| !is_held) {
            change.trie.prune(slot);
            for &(item, _) in &self.pending {
                if let Some(landed) = self.landed.get_mut(item) {
                    *landed = Landed::default();
                }
            }
        }
        self.pending.clear();
    }
}

/// Parks a name that could not be placed.
fn unplace(change: &mut RankChange<'_>, name: BlockName, record: Record, restored: &mut Restored) {
    let parked = change.restore_parked(name, record);
    *(if parked { &mut restored.unplaced } else { &mut restored.dropped }) += 1;
}

/// Parks the blocks of a run after the placed ones.
fn unplace_run(
    change: &mut RankChange<'_>,
    source: Option<SourceId>,
    parent: Option<BlockName>,
    run: &RunImage,
    placed: usize,
    restored: &mut Restored,
) {
    let before = placed.checked_sub(1).and_then(|last| run.blocks.get(last));
    let mut parent = before.map_or(parent, |block| Some(block.name));
    for block in run.blocks.iter().skip(placed) {
        match source {
            Some(source) => {
                let record = change.record_of(source, run.tiers, parent, block.local);
                unplace(change, block.name, record, restored);
            }
            None => restored.dropped += 1,
        }
        parent = Some(block.name);
    }
}
