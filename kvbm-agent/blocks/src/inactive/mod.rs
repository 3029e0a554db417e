//! Eviction policies: choose which unused block to evict when a pool needs room.
//!
//! A registered block that is not in use is *inactive*: it can still be found, and it can be evicted. Each policy
//! implements [`InactiveIndex`] with operations in O(1) or O(log n). No operation scans all blocks.

mod frequency;
mod lineage;
mod lists;
mod lru;
mod sketch;

#[cfg(test)]
mod inactive_test;

pub use frequency::TinyLfu;
pub use lineage::Lineage;
pub(crate) use lists::ClassLists;
pub use lru::Lru;
pub use sketch::FrequencySketch;

use crate::identity::{BlockIdentity, Priority, SlotId};
use kvasir_proto::types::SequenceHash;
use std::fmt::Debug;

/// A registered block, as policies receive it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InactiveEntry {
    /// The block's slot.
    pub slot: SlotId,
    /// The block's identity.
    pub identity: BlockIdentity,
    /// Blocks with the lowest priority are evicted first.
    pub priority: Priority,
}

/// The eviction policy of a pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum EvictionPolicy {
    /// [`Lru`]: evicts the least recently used block.
    Lru,
    /// [`TinyLfu`]: evicts the least frequently used block, in four frequency tiers; within a tier, the least recently
    /// used.
    TinyLfu,
    /// [`Lineage`]: evicts the least recently used block without children, so that prefixes stay complete.
    #[default]
    Lineage,
}

impl EvictionPolicy {
    /// Creates an empty index for a pool of `blocks` blocks.
    #[must_use]
    pub fn index(self, blocks: u32) -> Box<dyn InactiveIndex> {
        match self {
            Self::Lru => Box::new(Lru::new(blocks)),
            Self::TinyLfu => Box::new(TinyLfu::new(blocks)),
            Self::Lineage => Box::new(Lineage::new()),
        }
    }
}

/// Inactive blocks of one pool in eviction order. The pool reports active registrations, too, because a block in use
/// may prevent the eviction of another block.
pub trait InactiveIndex: Debug + Send {
    /// Reports a new registration. The block is in use.
    fn registered(&mut self, _identity: &BlockIdentity) {}

    /// Reports that the registration of a block in use ended.
    fn unregistered(&mut self, _identity: &BlockIdentity) {}

    /// Counts a use: the block was found or registered.
    fn touched(&mut self, _sequence: SequenceHash) {}

    /// Adds a registered block that is no longer in use.
    fn insert(&mut self, entry: InactiveEntry);

    /// Removes an inactive block that is in use again.
    fn remove(&mut self, entry: &InactiveEntry);

    /// Evicts `count` blocks in eviction order and appends their slots to `slots`. The blocks are then neither inactive
    /// nor registered. If fewer blocks can be evicted, it evicts none and returns `false`.
    fn evict(&mut self, count: usize, slots: &mut Vec<SlotId>) -> bool;

    /// Number of inactive blocks.
    fn len(&self) -> usize;

    /// Whether there are no inactive blocks.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}
