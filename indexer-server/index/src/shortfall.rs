//! Counts the blocks that a rank lacks because of the byte budget.

use crate::source::SourceId;
use smallvec::SmallVec;

/// Missing blocks of one rank, because of the byte budget.
#[derive(Debug, Default)]
pub(crate) struct Shortfall {
    /// Number of blocks that were evicted, or rejected as a consequence. 0 once no source may lack a block.
    blocks: u64,
    /// Sources that may lack evicted blocks.
    sources: SmallVec<[SourceId; 1]>,
}

impl Shortfall {
    pub(crate) const fn blocks(&self) -> u64 {
        self.blocks
    }

    pub(crate) fn sources(&self) -> &[SourceId] {
        &self.sources
    }

    /// Counts evicted blocks. `new` has the affected sources that were not affected before.
    pub(crate) fn add(&mut self, blocks: u64, new: &[SourceId]) {
        self.blocks += blocks;
        self.sources.extend_from_slice(new);
        debug_assert!((self.blocks > 0) != self.sources.is_empty(), "some source is short");
    }

    /// Ends the shortfall of a source.
    pub(crate) fn clear(&mut self, source: SourceId) {
        self.sources.retain(|at| *at != source);
        if self.sources.is_empty() {
            self.blocks = 0;
        }
    }
}
