//! Tracks names that were announced with two different meanings.

use kvasir_proto::types::{BlockName, LocalHash};
use smallvec::SmallVec;

/// Maximum number of contradicted names of a rank that are remembered. Beyond it, the contradiction lasts
/// until a clear.
const CONTRADICTED_NAMES_MAX: usize = 64;

/// Meaning of a name: stored, or announced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Meaning {
    /// Name of the preceding block.
    pub parent: Option<BlockName>,
    /// Hash of the block's tokens.
    pub local: Option<LocalHash>,
}

/// A name that was announced with another meaning than its stored one.
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
    /// Counts a contradiction, and remembers its name, up to a limit of names.
    pub(crate) fn record_contradiction(&mut self, contradiction: Contradiction) {
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

    /// Removes a name, because the rank has no longer a block under it. A new meaning then contradicts no
    /// stored one.
    pub(crate) fn forget(&mut self, name: BlockName) {
        self.names.retain(|known| *known != name);
        if self.names.is_empty() && !self.too_many {
            *self = Self::default();
        }
    }

    /// Whether a contradicted name still has a block.
    pub(crate) fn is_any(&self, is_held: impl Fn(BlockName) -> bool) -> bool {
        self.too_many || self.names.iter().any(|&name| is_held(name))
    }

    /// The first contradiction, and the number of contradictions.
    pub(crate) fn first(&self) -> Option<(Contradiction, u64)> {
        self.first.map(|first| (first, self.count))
    }
}
