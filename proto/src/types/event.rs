use super::{BlockName, LocalHash, Tier};
use crate::limits::EVENT_BLOCKS_MAX;
use std::fmt;

/// How repeated announcements of a block count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CopyMode {
    /// Each store adds a copy, each removal takes one away. The block is held while copies remain.
    Counted,
    /// A store means held, a removal means not held, independent of repetitions.
    Set,
}

/// The name in options.
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
    /// Hash of the block's tokens.
    pub local: LocalHash,
}

/// An engine's event, normalised: only hashes, never tokens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KvEvent {
    /// Blocks are cached; each block is the parent of the next.
    Stored {
        /// Name of the block before the first; none at the start of a prompt.
        parent: Option<BlockName>,
        /// Tier of the blocks.
        tier: Tier,
        /// The blocks, in order.
        blocks: Vec<StoredBlock>,
    },
    /// Names announced without tokens: adds a tier to names that are already known.
    StoredNames {
        /// The new tier of the names.
        tier: Tier,
        /// The names.
        names: Vec<BlockName>,
    },
    /// Names removed from a tier. If the source counts copies, each name loses one copy.
    Removed {
        /// The tier that lost the names.
        tier: Tier,
        /// The names.
        names: Vec<BlockName>,
    },
    /// All copies of the names in a tier are removed, regardless of the count.
    Gone {
        /// The tier that lost the names.
        tier: Tier,
        /// The names.
        names: Vec<BlockName>,
    },
    /// All blocks that the source stored for the rank are removed.
    Cleared,
    /// All blocks that the source stored for the rank in one tier are removed.
    ClearedTier(Tier),
}

impl KvEvent {
    /// Appends a stored block to the last event, if the block continues its chain and the event has room. Otherwise
    /// adds an event.
    pub fn push_stored(
        events: &mut Vec<Self>,
        parent: Option<BlockName>,
        tier: Tier,
        block: StoredBlock,
    ) {
        if let Some(Self::Stored { tier: at, blocks, .. }) = events.last_mut()
            && *at == tier
            && parent.is_some()
            && blocks.last().map(|last| last.name) == parent
            && blocks.len() < EVENT_BLOCKS_MAX
        {
            blocks.push(block);
            return;
        }
        events.push(Self::Stored { parent, tier, blocks: vec![block] });
    }

    /// Number of block operations in the event. A clear, of one tier or of all, counts as one.
    #[must_use]
    pub fn operations(&self) -> usize {
        match self {
            Self::Stored { blocks, .. } => blocks.len(),
            Self::StoredNames { names, .. }
            | Self::Removed { names, .. }
            | Self::Gone { names, .. } => names.len(),
            Self::Cleared | Self::ClearedTier(_) => 1,
        }
    }
}
