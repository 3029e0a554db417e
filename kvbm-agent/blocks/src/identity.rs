//! What tells one block from another one.

use kvasir_proto::hash;
use kvasir_proto::types::{LocalHash, SequenceHash};
use std::fmt;

/// A block's content and prefix, as hashes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct BlockIdentity {
    /// Names the block with its whole prefix. Pools find blocks by it.
    pub sequence: SequenceHash,
    /// Sequence hash of the block before it; none at the start of a sequence.
    pub parent: Option<SequenceHash>,
    /// Hash of the block's own tokens.
    pub local: LocalHash,
    /// Blocks before it.
    pub position: u32,
}

impl BlockIdentity {
    /// The first block of a sequence, named canonically.
    #[must_use]
    pub fn first(local: LocalHash) -> Self {
        Self { sequence: hash::sequence_hash(None, local), parent: None, local, position: 0 }
    }

    /// The block after this one, named canonically.
    #[must_use]
    pub fn next(&self, local: LocalHash) -> Self {
        Self {
            sequence: hash::sequence_hash(Some(self.sequence), local),
            parent: Some(self.sequence),
            local,
            position: self.position.saturating_add(1),
        }
    }

    /// Whether position and parent fit one another: a block has a parent unless it is the first.
    #[must_use]
    pub const fn is_consistent(&self) -> bool {
        self.parent.is_some() == (self.position > 0)
    }

    /// Identities of a chain of blocks that starts at the root, in order, named canonically.
    pub fn chain(locals: &[LocalHash]) -> impl Iterator<Item = Self> + '_ {
        locals.iter().scan(None, |before: &mut Option<Self>, &local| {
            let block = before.map_or_else(|| Self::first(local), |before| before.next(local));
            *before = Some(block);
            *before
        })
    }
}

/// Checksum of a block's bytes. Which function makes it is the storages' choice; one for all tiers.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Checksum(pub u64);

impl fmt::Debug for Checksum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Checksum({:016x})", self.0)
    }
}

/// How much a block is worth keeping: of the blocks that may be evicted, the lowest go first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Priority(pub u8);

/// A block's place in a tier's storage, below the number of its blocks.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SlotId(pub u32);

impl SlotId {
    /// As an index.
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

impl fmt::Debug for SlotId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SlotId({})", self.0)
    }
}
