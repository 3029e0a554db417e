//! Images of workers, as checkpoints persist them. Data only: `cut` makes it, `restore` reads it.
//!
//! Images name positions by the numbers of their slots. In all images of one generation (from a
//! complete image to the next) a number means the same position as long as the worker holds that
//! position or one below it. A later entry for a number replaces an earlier one. Entries of numbers
//! that mean nothing any more do no harm: nothing that is held refers to them.

use crate::slots::Slot;
use crate::source::SourceId;
use kvasir_proto::types::{
    BlockName, CopyMode, DpRank, LocalHash, NameMeaning, SourceStatus, StoredBlock, Tier, TierSet,
    WorkerId,
};
use std::sync::Arc;

/// What changed of a worker since its last image, or all of it, with the status of its sources at
/// that moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkerImage {
    /// The worker.
    pub worker: WorkerId,
    /// Whether this is everything, so that earlier images no longer count.
    pub whole: bool,
    /// All its sources.
    pub sources: Vec<SourceImage>,
    /// All its ranks, in order.
    pub ranks: Vec<RankImage>,
}

/// One source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceImage {
    /// How ranks and copies refer to it, within one generation.
    pub id: SourceId,
    /// Its name.
    pub name: Arc<str>,
    /// How it counts repeated announcements.
    pub copy_mode: CopyMode,
    /// Its cursor and its state, as it was reported.
    pub status: SourceStatus,
    /// Whether the index refused blocks that it announced.
    pub incomplete: bool,
    /// Whether some of what it holds is suspect: events were lost, and it has not been announced
    /// since. Images do not record which blocks: after a restore all are.
    pub suspect: bool,
    /// Ranks that it feeds.
    pub ranks: Vec<DpRank>,
}

/// What changed of one rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RankImage {
    /// The rank.
    pub rank: DpRank,
    /// The source of all blocks in `pages`; none before the first store.
    pub primary: Option<SourceId>,
    /// Blocks shed for the byte budget.
    pub shed_blocks: u64,
    /// Sources of which blocks may be missing since some were shed.
    pub short: Vec<SourceId>,
    /// Pages of slots, each with all that the rank holds there plainly: one copy, of the primary
    /// source, under the name of the position. Without runs: none any more.
    pub pages: Vec<PageImage>,
    /// Names held otherwise, spelled out. Without copies: not so any more.
    pub names: Vec<NameImage>,
    /// Positions above held ones that the rank does not hold, or under other names than their own
    /// only. Ignore the entry of a position that the rank holds under its own name.
    pub holes: Vec<HoleImage>,
    /// What names mean besides their tokens, where that changed.
    pub meanings: Vec<MeaningImage>,
}

/// What a name of a source means besides its tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MeaningImage {
    /// The source.
    pub source: SourceId,
    /// The name.
    pub name: BlockName,
    /// Its meaning. None: it has none any more.
    pub meaning: Option<NameMeaning>,
}

/// One page of slots of one rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PageImage {
    /// Number of the page: that of its first slot, divided by [`PAGE_SLOTS`](crate::PAGE_SLOTS).
    pub page: u32,
    /// Stretches of it, in order.
    pub runs: Vec<RunImage>,
}

/// Consecutive slots of one page, each the child of the one before.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunImage {
    /// Slot of the first block.
    pub first: Slot,
    /// Slot that the first block is a child of; none for first blocks of prompts.
    pub parent: Option<Slot>,
    /// Tiers in which all of them are held; at least one.
    pub tiers: TierSet,
    /// The blocks, 1 to 64.
    pub blocks: Vec<StoredBlock>,
}

/// One name that is not plain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NameImage {
    /// The name.
    pub name: BlockName,
    /// Name of the block before, as announced.
    pub parent: Option<BlockName>,
    /// Local hash; none if it was announced without tokens.
    pub local: Option<LocalHash>,
    /// Its position; none while parked.
    pub position: Option<Position>,
    /// Copies by tier of each source that has any.
    pub copies: Vec<(SourceId, [u32; Tier::COUNT])>,
}

/// A position that a rank does not hold under its own name: the one that a block below was announced
/// with as its parent's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HoleImage {
    /// Where it is.
    pub position: Position,
    /// Its own name, under which it was first stored by whichever rank.
    pub name: BlockName,
    /// Its local hash.
    pub local: LocalHash,
}

/// A slot and the slot above it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Position {
    /// The slot.
    pub slot: Slot,
    /// The slot that it is a child of; none for first blocks of prompts.
    pub parent: Option<Slot>,
}
