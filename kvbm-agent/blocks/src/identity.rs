//! Identifies blocks: content and prefix as hashes, checksum, priority, slot.

use kvasir_proto::hash;
use kvasir_proto::types::{LocalHash, SequenceHash};
use std::fmt;

/// A block's identity: hashes of its content and its prefix.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct BlockIdentity {
    /// Hash of the block with its complete prefix; the key by which pools find blocks.
    pub sequence: SequenceHash,
    /// Sequence hash of the previous block; `None` for the first block of a sequence.
    pub parent: Option<SequenceHash>,
    /// Hash of the block's own tokens.
    pub local: LocalHash,
    /// Number of blocks before this one.
    pub position: u32,
}

impl BlockIdentity {
    /// The first block of a sequence, with a canonical hash.
    #[must_use]
    pub fn first(local: LocalHash) -> Self {
        Self { sequence: hash::sequence_hash(None, local), parent: None, local, position: 0 }
    }

    /// The block after this one, with a canonical hash.
    #[must_use]
    pub fn next(&self, local: LocalHash) -> Self {
        Self {
            sequence: hash::sequence_hash(Some(self.sequence), local),
            parent: Some(self.sequence),
            local,
            position: self.position.saturating_add(1),
        }
    }

    /// Whether position and parent agree: only the first block has no parent.
    #[must_use]
    pub const fn is_consistent(&self) -> bool {
        self.parent.is_some() == (self.position > 0)
    }

    /// The identities of a chain of blocks from the root, in order, with canonical hashes.
    pub fn chain(locals: &[LocalHash]) -> impl Iterator<Item = Self> + '_ {
        locals.iter().scan(None, |before: &mut Option<Self>, &local| {
            let block = before.map_or_else(|| Self::first(local), |before| before.next(local));
            *before = Some(block);
            *before
        })
    }
}

/// Checksum of a block's bytes. The storages choose one algorithm for all tiers.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Checksum(pub u64);

impl fmt::Debug for Checksum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Checksum({:016x})", self.0)
    }
}

/// How valuable a block is. Blocks with the lowest priority are evicted first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Priority(pub u8);

/// Number of a slot in a tier's storage, less than the tier's number of blocks.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SlotId(pub u32);

impl SlotId {
    /// The slot number as an index.
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
