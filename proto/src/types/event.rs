use super::{BlockName, LocalHash, Tier};
use std::fmt;

/// How announcements of a block that is already held are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CopyMode {
    /// A store is one more copy, a removal one less; held while above 0.
    Counted,
    /// A store says "held", a removal says "not held".
    Set,
}

/// As options spell it.
impl fmt::Display for CopyMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Counted => "counted",
            Self::Set => "set",
        })
    }
}

/// One block of a stored event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct StoredBlock {
    /// The engine's hash of the block.
    pub name: BlockName,
    /// Hash of its tokens.
    pub local: LocalHash,
}

/// What an engine announced, normalised: hashes only, never tokens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KvEvent {
    /// Blocks are held; each is the parent of the next.
    Stored {
        /// Name of the block before the first; none at the start of a prompt.
        parent: Option<BlockName>,
        /// Where they lie.
        tier: Tier,
        /// The blocks, in order.
        blocks: Vec<StoredBlock>,
    },
    /// Names are held, of which the event gave no tokens: a tier more for names that are known.
    StoredNames {
        /// Where they lie.
        tier: Tier,
        /// The names.
        names: Vec<BlockName>,
    },
    /// Names are no longer held in a tier; of a source that counts, one copy of each is not.
    Removed {
        /// The tier they left.
        tier: Tier,
        /// The names.
        names: Vec<BlockName>,
    },
    /// No copy of these names is left in a tier, however many were counted.
    Gone {
        /// The tier they left.
        tier: Tier,
        /// The names.
        names: Vec<BlockName>,
    },
    /// All that the source stored for the rank is gone.
    Cleared,
}

impl KvEvent {
    /// Number of block operations in the event; a clear is one.
    #[must_use]
    pub fn operations(&self) -> usize {
        match self {
            Self::Stored { blocks, .. } => blocks.len(),
            Self::StoredNames { names, .. }
            | Self::Removed { names, .. }
            | Self::Gone { names, .. } => names.len(),
            Self::Cleared => 1,
        }
    }
}
