//! What a rank lacks for the byte budget.

use crate::source::SourceId;
use smallvec::SmallVec;

/// Blocks that a rank lacks for the byte budget.
#[derive(Debug, Default)]
pub(crate) struct Shortfall {
    /// Blocks shed, and refused because of that, as long as some source may lack some.
    blocks: u64,
    /// Sources that may lack some of them.
    sources: SmallVec<[SourceId; 1]>,
}

impl Shortfall {
    pub(crate) const fn blocks(&self) -> u64 {
        self.blocks
    }

    pub(crate) fn sources(&self) -> &[SourceId] {
        &self.sources
    }

    /// Blocks were shed that these sources lack, of which only the new ones are given.
    pub(crate) fn add(&mut self, blocks: u64, new: &[SourceId]) {
        self.blocks += blocks;
        self.sources.extend_from_slice(new);
        debug_assert!((self.blocks > 0) != self.sources.is_empty(), "some source is short");
    }

    /// A source lacks nothing any more.
    pub(crate) fn clear(&mut self, source: SourceId) {
        self.sources.retain(|at| *at != source);
        if self.sources.is_empty() {
            self.blocks = 0;
        }
    }
}
