//! Cursors of work in slices: where the next slice resumes.

use crate::segments::SegmentId;
use crate::sets::HolderIndex;
use crate::slots::Page;
use kvasir_proto::types::{DpRank, Tier};

/// Copies of a source that a sweep drops.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    All,
    /// Copies in one tier.
    InTier(Tier),
    Suspects,
}

impl Kind {
    /// Whether the sweep drops copies in this tier, given whether they are suspect.
    pub(crate) fn drops(self, tier: Tier, is_suspect: bool) -> bool {
        match self {
            Self::All => true,
            Self::InTier(only) => only == tier,
            Self::Suspects => is_suspect,
        }
    }
}

/// Where a sweep resumes.
#[derive(Debug, Clone)]
pub(crate) struct SweepCursor {
    pub(crate) kind: Kind,
    pub(crate) only: Option<DpRank>,
    /// Index into the source's ranks.
    pub(crate) rank: usize,
    /// Next part of the bits of further groups to sweep.
    pub(crate) bit_part: usize,
    /// Next part of the records to sweep, once all bits are done.
    pub(crate) part: usize,
    /// Next part of the pages to sweep, once all records are done.
    pub(crate) page_part: usize,
    /// Pages of the previous part that are not yet swept.
    pub(crate) pages: Vec<Page>,
}

impl SweepCursor {
    pub(crate) const fn start_at(kind: Kind, only: Option<DpRank>, rank: usize) -> Self {
        Self { kind, only, rank, bit_part: 0, part: 0, page_part: 0, pages: Vec::new() }
    }
}

/// Where eviction resumes.
#[derive(Debug, Default)]
pub(crate) struct ShedCursor {
    pub(crate) segment: SegmentId,
    pub(crate) holder: HolderIndex,
    /// Part of the rank's records.
    pub(crate) part: usize,
}
