use super::{BlockName, LocalHash, Tier};
use crate::limits::EVENT_BLOCKS_MAX;
use std::fmt;

/// How repeated announcements of a block count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CopyMode {
    /// A store adds a copy, a removal takes one away; the block is held while a copy is left.
    Counted,
    /// A store means held, a removal means not held, however often they repeat.
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
        /// The tier they are in.
        tier: Tier,
        /// The blocks, in order.
        blocks: Vec<StoredBlock>,
    },
    /// Names are held, announced without tokens: this adds a tier to names that are known.
    StoredNames {
        /// The tier they are in.
        tier: Tier,
        /// The names.
        names: Vec<BlockName>,
    },
    /// Names are no longer held in a tier; if the source counts copies, each name loses one copy.
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
    /// Everything the source stored for the rank is gone.
    Cleared,
    /// Everything the source stored for the rank in one tier is gone.
    ClearedTier(Tier),
}

impl KvEvent {
    /// Adds a stored block to events: to the last of them, if it continues that chain and there is room.
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

    /// Number of block operations in the event; a clear, of all tiers or of one, is one.
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
