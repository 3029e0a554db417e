//! Names that were announced as other blocks than they mean.

use kvasir_proto::types::{BlockName, LocalHash};
use smallvec::SmallVec;

/// Most contradicted names of a rank that are remembered; with more, the contradiction lasts until a clear.
const CONTRADICTED_NAMES_MAX: usize = 64;

/// What a name means, or was announced to mean.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Meaning {
    /// Name of the block before.
    pub parent: Option<BlockName>,
    /// Hash of its tokens.
    pub local: Option<LocalHash>,
}

/// A name that was announced as another block than it means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Contradiction {
    /// The name.
    pub name: BlockName,
    /// Meaning that the index keeps.
    pub held: Meaning,
    /// Meaning of the later announcement, which the index refused.
    pub announced: Meaning,
}

/// The contradicted names of a rank.
#[derive(Debug, Default)]
pub(crate) struct Contradicted {
    names: SmallVec<[BlockName; 1]>,
    too_many: bool,
    /// Contradictions since the last clear.
    count: u64,
    first: Option<Contradiction>,
}

impl Contradicted {
    pub(crate) fn note(&mut self, contradiction: Contradiction) {
        self.count += 1;
        self.first.get_or_insert(contradiction);
        if self.names.contains(&contradiction.name) {
            return;
        }
        if self.names.len() < CONTRADICTED_NAMES_MAX {
            self.names.push(contradiction.name);
        } else {
            self.too_many = true;
        }
    }

    /// A name is no longer held: nothing contradicts what is announced next.
    pub(crate) fn forget(&mut self, name: BlockName) {
        self.names.retain(|known| *known != name);
        if self.names.is_empty() && !self.too_many {
            *self = Self::default();
        }
    }

    /// Whether a contradicted name is still held.
    pub(crate) fn is_any(&self, is_held: impl Fn(BlockName) -> bool) -> bool {
        self.too_many || self.names.iter().any(|&name| is_held(name))
    }

    /// The first contradiction, and how many there were.
    pub(crate) fn first(&self) -> Option<(Contradiction, u64)> {
        self.first.map(|first| (first, self.count))
    }
}
