//! Images of workers, as checkpoints persist them. Data types only: `cut` writes them, `restore` reads them.
//!
//! Images identify positions by slot number. A generation is a complete image and its incremental successors.
//! Within it, a number means the same position as long as the worker holds that position or one below it. A
//! later entry for a number replaces an earlier one. Entries for numbers that are no longer in use are
//! harmless, because held blocks do not refer to them.

use crate::slots::Slot;
use crate::source::SourceId;
use kvasir_proto::types::{
    BlockName, CopyMode, DpRank, LocalHash, NameMeaning, SourceStatus, StoredBlock, Tier, TierSet,
    WorkerId,
};
use std::sync::Arc;

/// An incremental or complete image of a worker, with the status of its sources at the same moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkerImage {
    /// The worker.
    pub worker: WorkerId,
    /// Whether the image is complete, so that earlier images no longer count.
    pub whole: bool,
    /// All sources of the worker.
    pub sources: Vec<SourceImage>,
    /// All ranks of the worker, in order.
    pub ranks: Vec<RankImage>,
}

/// One source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceImage {
    /// Id by which ranks and copies refer to the source, within one generation.
    pub id: SourceId,
    /// Name of the source.
    pub name: Arc<str>,
    /// How the source counts repeated announcements.
    pub copy_mode: CopyMode,
    /// Cursor and state of the source, as reported.
    pub status: SourceStatus,
    /// Whether the index rejected blocks that the source announced.
    pub incomplete: bool,
    /// Whether some blocks of the source are suspect: events were lost, and the blocks were not announced
    /// since. Images do not record which; after a restore all are suspect.
    pub suspect: bool,
    /// Ranks that the source feeds.
    pub ranks: Vec<DpRank>,
}

/// Changes of one rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RankImage {
    /// The rank.
    pub rank: DpRank,
    /// The source of all blocks in `pages`; `None` before the first store.
    pub primary: Option<SourceId>,
    /// Number of blocks evicted for the byte budget.
    pub shed_blocks: u64,
    /// Sources that may lack blocks because of evictions.
    pub short: Vec<SourceId>,
    /// Pages of slots, each with all plain blocks of the rank: one copy, of the primary source, under the
    /// position's own name. A page without runs has no plain blocks any more.
    pub pages: Vec<PageImage>,
    /// Names that are not plain. An entry without copies: plain again, or removed.
    pub names: Vec<NameImage>,
    /// Ancestors of held positions that the rank does not hold, or holds only under other names than their
    /// own. Ignore an entry if the rank holds the position under its own name.
    pub holes: Vec<HoleImage>,
    /// Changed meanings of names besides their tokens.
    pub meanings: Vec<MeaningImage>,
}

/// Meaning of a source's name besides its tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MeaningImage {
    /// The source.
    pub source: SourceId,
    /// The name.
    pub name: BlockName,
    /// Meaning of the name; `None` after the meaning was removed.
    pub meaning: Option<NameMeaning>,
}

/// One page of slots of one rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PageImage {
    /// Page number: the page's first slot, divided by [`PAGE_SLOTS`](crate::PAGE_SLOTS).
    pub page: u32,
    /// Runs of the page, in order.
    pub runs: Vec<RunImage>,
}

/// Consecutive slots of one page, each the child of the previous one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunImage {
    /// Slot of the first block.
    pub first: Slot,
    /// Slot of the first block's parent; `None` for the first block of a prompt.
    pub parent: Option<Slot>,
    /// Tiers that contain all blocks of the run; at least one.
    pub tiers: TierSet,
    /// The blocks, 1 to 64.
    pub blocks: Vec<StoredBlock>,
}

/// One name that is not plain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NameImage {
    /// The name.
    pub name: BlockName,
    /// Name of the preceding block, as announced.
    pub parent: Option<BlockName>,
    /// Local hash; `None` if the name was announced without tokens.
    pub local: Option<LocalHash>,
    /// Position of the name; `None` while parked.
    pub position: Option<Position>,
    /// Copies by tier, for each source with copies.
    pub copies: Vec<(SourceId, [u32; Tier::COUNT])>,
}

/// A position that a rank does not hold under its own name, but that was announced as the parent of a block
/// below.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HoleImage {
    /// Slot and parent slot.
    pub position: Position,
    /// Own name of the position, under which a rank first stored it.
    pub name: BlockName,
    /// Local hash of the position.
    pub local: LocalHash,
}

/// A slot and the slot above it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Position {
    /// The slot.
    pub slot: Slot,
    /// The parent slot; `None` for the first block of a prompt.
    pub parent: Option<Slot>,
}
