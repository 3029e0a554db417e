//! Cuts: consistent images of workers for checkpoints, either complete or incremental.
//!
//! A cut begins in O(ranks): it takes the notes of changes and the status of the sources. Then it reads in
//! slices. From the beginning to the last slice, its owner does not change the worker, but may admit readers.
//!
//! # Why the images suffice
//! The images of a generation must contain every position that a rank holds, and every position above: plain
//! blocks in `pages`, others in `names`, and positions that the rank does not hold in `holes`. A rank gets a
//! new block only while it holds the block's parent. So a position becomes a hole only when the rank releases
//! it, and the release is noted ([`ChangeLog::note_released`]). If the rank may hold the block directly below
//! at the time of the cut, the image contains the hole and all positions above. If it does not, either the
//! positions below do not matter, or the position directly below became a hole itself, then or earlier. The
//! image that recorded that hole also contains this one.
//!
//! [`ChangeLog::note_released`]: crate::changes::ChangeLog::note_released

use crate::changes::Changes;
use crate::error::IndexError;
use crate::holder::{Held, Holder};
use crate::image::{
    HoleImage, MeaningImage, NameImage, PageImage, Position, RankImage, RunImage, SourceImage,
    WorkerImage,
};
use crate::index::Index;
use crate::meanings::ChangedNames;
use crate::record::Record;
use crate::sets::HolderIndex;
use crate::slots::{NONE, PAGE_SLOTS, Page, Slot};
use crate::source::{Source, SourceId};
use crate::trie::Trie;
use kvasir_proto::types::{
    BlockName, DpRank, LocalHash, NameChange, SourceStatus, StateReason, StoredBlock, Tier,
    TierSet, WorkerId,
};
use roaring::RoaringBitmap;
use std::sync::Arc;

/// An image under construction.
#[derive(Debug)]
pub struct Cut {
    image: WorkerImage,
    ranks: Vec<RankCut>,
    current: usize,
    sources: Vec<SourceCut>,
}

/// The notes that a cut took from the index. If the image is not persisted, return them with
/// [`Index::abandon_cut`].
#[derive(Debug)]
pub struct CutReceipt {
    worker: WorkerId,
    ranks: Vec<(HolderIndex, Option<Box<Changes>>)>,
    sources: Vec<(SourceId, ChangedNames)>,
}

/// Result of one slice of a cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CutStep {
    /// Whether the image is complete. If not, call again.
    pub done: bool,
    /// Number of blocks, names, holes and pages read.
    pub read: usize,
}

/// Progress of the cut in one rank.
#[derive(Debug)]
struct RankCut {
    holder: HolderIndex,
    /// Notes of the rank's changes; `None` if they are incomplete.
    changes: Option<Box<Changes>>,
    whole: bool,
    stage: Stage,
    /// Next part of the stage's table.
    part: usize,
    /// The rest of the previous part, and the holes found from it.
    todo: Vec<Next>,
    /// Holes that are in the image, each with all positions above.
    holes: RoaringBitmap,
    /// Other slots whose own names are in the image.
    own_names: RoaringBitmap,
}

/// Progress of the cut in the meanings of one source's names.
#[derive(Debug)]
struct SourceCut {
    source: SourceId,
    /// Names with changed meanings; `None` if the notes are incomplete.
    changed: ChangedNames,
    /// The last name read.
    last: Option<(DpRank, BlockName)>,
    is_done: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Pages,
    /// Names of further groups that have bits; of a whole image only.
    Bits,
    Names,
}

/// An item to read.
#[derive(Debug, Clone, Copy)]
enum Next {
    Page(Page),
    Name(BlockName),
    /// A hole, and all positions above it.
    Hole(Slot),
}

impl Cut {
    /// The image, which is complete after a slice with `done`, and the receipt to undo the cut.
    #[must_use]
    pub fn finish(self) -> (WorkerImage, CutReceipt) {
        let ranks = self.ranks.into_iter().map(|rank| (rank.holder, rank.changes)).collect();
        let sources = self.sources.into_iter().map(|at| (at.source, at.changed)).collect();
        let worker = self.image.worker.clone();
        (self.image, CutReceipt { worker, ranks, sources })
    }
}

impl RankCut {
    fn new(holder: HolderIndex, changes: Option<Box<Changes>>, whole: bool) -> Self {
        Self {
            holder,
            changes,
            whole,
            stage: Stage::Pages,
            part: 0,
            todo: Vec::new(),
            holes: RoaringBitmap::new(),
            own_names: RoaringBitmap::new(),
        }
    }

    /// The next item to read: all pages first, then all bits, then all names, each with the holes found from it.
    fn next(&mut self, trie: &Trie, holder: &Holder) -> Option<Next> {
        while self.todo.is_empty() {
            if !self.load(trie, holder) {
                self.stage = match self.stage {
                    Stage::Pages => Stage::Bits,
                    Stage::Bits => Stage::Names,
                    Stage::Names => return None,
                };
                self.part = 0;
            }
        }
        self.todo.pop()
    }

    /// Loads the next part of a table. Returns `false` after the last.
    fn load(&mut self, trie: &Trie, holder: &Holder) -> bool {
        let part = self.part;
        let todo = &mut self.todo;
        self.part += 1;
        match (self.stage, self.changes.as_ref().filter(|_| !self.whole)) {
            (Stage::Pages, None) => stack(todo, holder.pages(part), Next::Page),
            (Stage::Pages, Some(changed)) => stack(todo, changed.pages(part), Next::Page),
            (Stage::Bits, None) => {
                let names = |blocks| Iterator::map(blocks, |at| Holder::name_of_bit(trie, at));
                stack(todo, holder.bits().part(part).map(names), Next::Name)
            }
            (Stage::Bits, Some(_)) => false,
            (Stage::Names, None) => stack(todo, holder.records().names(part), Next::Name),
            (Stage::Names, Some(changed)) => stack(todo, changed.names(part), Next::Name),
        }
    }
}

/// Pushes a part of a table onto a stack. Returns `false` if `part` is `None`.
fn stack<T>(
    todo: &mut Vec<Next>,
    part: Option<impl Iterator<Item = T>>,
    next: impl Fn(T) -> Next,
) -> bool {
    let Some(part) = part else {
        return false;
    };
    todo.extend(part.map(next));
    true
}

impl Index {
    /// Begins an image of a worker. It is complete if `whole`, or if not all changes since the last image
    /// were noted; else incremental. The cut takes the notes, so persist the image, or undo the cut with
    /// [`Index::abandon_cut`].
    ///
    /// # Errors
    /// If the worker is unknown.
    pub fn begin_cut(&mut self, worker: &WorkerId, whole: bool) -> Result<Cut, IndexError> {
        let unknown = || IndexError::UnknownWorker { worker: worker.clone() };
        let known = self.workers.get_mut(worker).ok_or_else(unknown)?;
        known.has_news = false;
        let holders: Vec<HolderIndex> = known.ranks.iter().map(|&(_, holder)| holder).collect();
        let ids = known.sources.clone();
        let has_names = |id| self.sources.get(id).is_some_and(|at| at.meanings.is_complete());
        let notes_complete = ids.iter().all(has_names);
        let notes_complete =
            notes_complete && holders.iter().all(|&at| self.has_complete_notes(at));
        let whole = whole || !notes_complete;
        let mut image =
            WorkerImage { worker: worker.clone(), whole, sources: Vec::new(), ranks: Vec::new() };
        let mut ranks = Vec::with_capacity(holders.len());
        for at in holders {
            let Some(Some(holder)) = self.holders.get_mut(at as usize) else {
                continue;
            };
            let changes = holder.changes_mut().take_notes(self.limits.changes);
            ranks.push(RankCut::new(at, changes, whole));
            image.ranks.push(RankImage {
                rank: holder.rank(),
                primary: holder.primary(),
                shed_blocks: holder.shed_blocks(),
                short: holder.short_sources().to_vec(),
                pages: Vec::new(),
                names: Vec::new(),
                holes: Vec::new(),
                meanings: Vec::new(),
            });
            self.recount(at);
        }
        let mut sources = Vec::with_capacity(ids.len());
        for id in ids {
            let reasons = self.lasting_reasons(id);
            if let Some(source) = self.sources.get_mut(&id) {
                image.sources.push(source_image(id, source, reasons));
                source.mark_imaged();
                let changed = source.meanings.take_changed();
                sources.push(SourceCut { source: id, changed, last: None, is_done: false });
            }
        }
        Ok(Cut { image, ranks, current: 0, sources })
    }

    /// Whether all changes of a rank since its last image were noted.
    fn has_complete_notes(&mut self, holder: HolderIndex) -> bool {
        let holder = self.holders.get_mut(holder as usize).and_then(Option::as_mut);
        holder.is_some_and(|holder| holder.changes_mut().is_complete())
    }

    /// Reads about `budget` further blocks, names and holes; at most 64 more, which is a page.
    pub fn cut_step(&self, cut: &mut Cut, budget: usize) -> CutStep {
        let mut read = 0;
        while let Some(rank) = cut.ranks.get_mut(cut.current) {
            if read >= budget.max(1) {
                return CutStep { done: false, read };
            }
            let image = cut.image.ranks.get_mut(cut.current);
            let (Some(holder), Some(image)) = (self.holder_at(rank.holder), image) else {
                cut.current += 1;
                continue;
            };
            read += match rank.next(&self.trie, holder) {
                Some(Next::Page(page)) => self.read_page(holder, page, rank, image),
                Some(Next::Name(name)) => self.read_name(holder, name, rank, image),
                Some(Next::Hole(slot)) => self.read_hole(slot, rank, image),
                None => {
                    cut.current += 1;
                    0
                }
            };
        }
        let Cut { image, sources, .. } = cut;
        for source in sources.iter_mut().filter(|at| !at.is_done) {
            if read >= budget.max(1) {
                return CutStep { done: false, read };
            }
            read += self.read_meanings(source, image, budget.max(1) - read);
            if !source.is_done {
                return CutStep { done: false, read };
            }
        }
        CutStep { done: true, read }
    }

    /// Returns the notes of a cut whose image was not persisted, so that the next image contains its changes.
    /// The cost is proportional to the number of notes.
    pub fn abandon_cut(&mut self, receipt: CutReceipt) {
        let CutReceipt { worker, ranks, sources } = receipt;
        let changed_max = self.changed_names_max();
        for (id, changed) in sources {
            if let Some(source) = self.sources.get_mut(&id) {
                source.meanings.give_back(changed, changed_max);
            }
        }
        for (at, changes) in ranks {
            let Some(Some(holder)) = self.holders.get_mut(at as usize) else {
                continue;
            };
            holder.changes_mut().give_back(changes);
            self.recount(at);
        }
        if let Some(known) = self.workers.get_mut(&worker) {
            known.has_news = true;
        }
    }

    // === reading ===

    /// Reads up to `most` further names of a source with their meanings. Returns their number.
    fn read_meanings(&self, cut: &mut SourceCut, image: &mut WorkerImage, most: usize) -> usize {
        let changed = cut.changed.as_ref().filter(|_| !image.whole);
        let source = self.sources.get(&cut.source);
        let next = source.map(|at| at.meanings.next(changed, cut.last, most)).unwrap_or_default();
        cut.is_done = next.len() < most;
        for &NameChange { rank, name, meaning } in &next {
            cut.last = Some((rank, name));
            if let Some(at) = image.ranks.iter_mut().find(|at| at.rank == rank) {
                at.meanings.push(MeaningImage { source: cut.source, name, meaning });
            }
        }
        next.len()
    }

    /// Reads a page: its plain blocks as runs, and the positions above them. Returns the cost: 1 for the page, and 1
    /// for each plain block.
    fn read_page(
        &self,
        holder: &Holder,
        page: Page,
        rank: &mut RankCut,
        image: &mut RankImage,
    ) -> usize {
        let mut runs: Vec<RunImage> = Vec::new();
        let mut slot = page * PAGE_SLOTS;
        let end = (page + 1) * PAGE_SLOTS;
        let mut read = 1;
        while let Some(held) = holder.next_held(&self.trie, slot, end, PAGE_SLOTS) {
            match held {
                Held::Recorded(at, _) => slot = at + 1,
                Held::Plain(at, len) => {
                    self.read_run(holder, at, len, &mut runs);
                    (slot, read) = (at + len, read + len as usize);
                }
            }
        }
        for parent in runs.iter().filter_map(|run| run.parent) {
            self.read_parent(holder, parent, rank, image);
        }
        self.schedule_released_slots(holder, page, rank);
        // In an incremental image, a page without runs replaces the page's earlier content.
        if !rank.whole || !runs.is_empty() {
            image.pages.push(PageImage { page, runs });
        }
        read
    }

    /// Reads plain slots of one segment. They extend the last run if they continue it.
    fn read_run(&self, holder: &Holder, first: Slot, len: u32, runs: &mut Vec<RunImage>) {
        let is_held = |tier: &Tier| self.trie.holds(first, holder.index(), *tier);
        let tiers: TierSet = Tier::ALL.into_iter().filter(is_held).collect();
        let parent = self.above(first);
        let locals = self.trie.slots.locals(first, len);
        let names = self.trie.slots.names(first, len);
        let block =
            |(&local, &name)| StoredBlock { name: BlockName(name), local: LocalHash(local) };
        let blocks = locals.iter().zip(names).map(block);
        let extends = |run: &&mut RunImage| {
            let behind = u32::try_from(run.blocks.len()).map(|len| run.first + len);
            behind == Ok(first) && parent == Some(first - 1) && run.tiers == tiers
        };
        match runs.last_mut().filter(extends) {
            Some(run) => run.blocks.extend(blocks),
            None => runs.push(RunImage { first, parent, tiers, blocks: blocks.collect() }),
        }
    }

    fn above(&self, slot: Slot) -> Option<Slot> {
        Some(self.trie.parent(slot)).filter(|&parent| parent != NONE)
    }

    /// Ensures that the images contain the position above a plain block or a placed name.
    fn read_parent(
        &self,
        holder: &Holder,
        parent: Slot,
        rank: &mut RankCut,
        image: &mut RankImage,
    ) {
        if !self.trie.holds_any(parent, holder.index()) {
            // An incremental image does not repeat the hole: an earlier image of the generation has it.
            if rank.whole {
                rank.todo.push(Next::Hole(parent));
            }
        } else if holder.is_recorded(parent) && rank.own_names.insert(parent) {
            // The rank may hold the position only under other names. The hole adds the position's own name.
            image.holes.push(self.hole(parent));
        }
    }

    /// Reads a name with a record. A name whose record was removed gets an empty entry, which replaces its earlier
    /// one. Returns the cost, 1.
    fn read_name(
        &self,
        holder: &Holder,
        name: BlockName,
        rank: &mut RankCut,
        image: &mut RankImage,
    ) -> usize {
        let Some(record) = holder.record(&self.trie, name) else {
            image.names.push(NameImage {
                name,
                parent: None,
                local: None,
                position: None,
                copies: Vec::new(),
            });
            return 1;
        };
        let at = |slot| Position { slot, parent: self.above(slot) };
        let position = record.slot.map(at);
        image.names.push(NameImage {
            name,
            parent: record.parent,
            local: record.local,
            position,
            copies: by_source(&record),
        });
        if let Some(Position { slot, parent }) = position {
            let is_plain = |child| holder.is_plain(&self.trie, child);
            // Plain blocks below refer to this position, and need its own name. A complete image adds it with them.
            if !rank.whole && self.trie.may_have_child(slot, is_plain) {
                self.read_parent(holder, slot, rank, image);
            }
            let is_hole = |parent: &Slot| !self.trie.holds_any(*parent, holder.index());
            if let Some(parent) = parent.filter(|parent| rank.whole && is_hole(parent)) {
                rank.todo.push(Next::Hole(parent));
            }
        }
        1
    }

    /// For an image of changes only: schedules the slots of a page that the rank released and below which it may
    /// still hold a block. They become holes of the image. A whole image finds its holes from the blocks below.
    fn schedule_released_slots(&self, holder: &Holder, page: Page, rank: &mut RankCut) {
        let changes = rank.changes.as_ref().filter(|_| !rank.whole);
        let released = changes.map_or(0, |changes| changes.released(page));
        let is_held = |slot| self.trie.holds_any(slot, holder.index());
        let slots = (0..PAGE_SLOTS).filter(|at| released >> at & 1 == 1);
        let holes = slots.map(|at| page * PAGE_SLOTS + at).filter(|&slot| {
            let is_hole = self.trie.slots.is_used(slot) && !is_held(slot);
            is_hole && self.trie.may_have_child(slot, is_held)
        });
        rank.todo.extend(holes.map(Next::Hole));
    }

    fn read_hole(&self, slot: Slot, rank: &mut RankCut, image: &mut RankImage) -> usize {
        if rank.holes.insert(slot) {
            image.holes.push(self.hole(slot));
            rank.todo.extend(self.above(slot).map(Next::Hole));
        }
        1
    }

    fn hole(&self, slot: Slot) -> HoleImage {
        let name = self.trie.slots.name(slot);
        let local = self.trie.slots.local(slot);
        HoleImage { position: Position { slot, parent: self.above(slot) }, name, local }
    }
}

/// The image of a source.
fn source_image(id: SourceId, source: &Source, reasons: Arc<[StateReason]>) -> SourceImage {
    let imaged = source.to_image();
    SourceImage {
        id,
        name: Arc::clone(source.name()),
        copy_mode: source.mode(),
        status: SourceStatus { state: imaged.state, reasons, ..source.status().clone() },
        incomplete: imaged.incomplete,
        suspect: imaged.suspect,
        ranks: source.ranks().iter().map(|&(rank, _)| rank).collect(),
    }
}

/// The copies of a record by source and tier.
fn by_source(record: &Record) -> Vec<(SourceId, [u32; Tier::COUNT])> {
    let mut copies: Vec<(SourceId, [u32; Tier::COUNT])> = Vec::new();
    for at in &record.copies {
        if copies.iter().all(|(source, _)| *source != at.source) {
            copies.push((at.source, record.by_tier(at.source)));
        }
    }
    copies
}
