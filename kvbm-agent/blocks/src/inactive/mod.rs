//! Which unused block goes first, when a pool needs room.
//!
//! A block that is registered and in no use is *inactive*: it can be found, and it can be evicted. Each policy stands
//! behind [`InactiveIndex`], whose steps cost O(1) or O(log n); none looks at all blocks.

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

/// A registered block, as policies see it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InactiveEntry {
    /// Its slot.
    pub slot: SlotId,
    /// What it is.
    pub identity: BlockIdentity,
    /// The lowest goes first.
    pub priority: Priority,
}

/// How a pool chooses what it evicts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum EvictionPolicy {
    /// [`Lru`]: what was unused for longest.
    Lru,
    /// [`TinyLfu`]: what was used least often of late, in four tiers; within a tier, what was unused for longest.
    TinyLfu,
    /// [`Lineage`]: blocks that no other block continues, unused for longest, so that no prefix breaks in the middle.
    #[default]
    Lineage,
}

impl EvictionPolicy {
    /// An empty index for a pool of `blocks` blocks.
    #[must_use]
    pub fn index(self, blocks: u32) -> Box<dyn InactiveIndex> {
        match self {
            Self::Lru => Box::new(Lru::new(blocks)),
            Self::TinyLfu => Box::new(TinyLfu::new(blocks)),
            Self::Lineage => Box::new(Lineage::new()),
        }
    }
}

/// Inactive blocks of one pool in the order of eviction. The pool tells it of every registration, too: a block in use
/// may be why another one has to stay.
pub trait InactiveIndex: Debug + Send {
    /// A block was registered. It is in use.
    fn registered(&mut self, _identity: &BlockIdentity) {}

    /// A block in use is registered no longer.
    fn unregistered(&mut self, _identity: &BlockIdentity) {}

    /// A block was asked for and found, or registered.
    fn touched(&mut self, _sequence: SequenceHash) {}

    /// A registered block is in use no longer.
    fn insert(&mut self, entry: InactiveEntry);

    /// An inactive block is in use again.
    fn remove(&mut self, entry: &InactiveEntry);

    /// Takes `count` blocks, which then are neither inactive nor registered, in the order of eviction; or none and
    /// `false` if there are not as many that may go. Their slots go to the end of `slots`.
    fn evict(&mut self, count: usize, slots: &mut Vec<SlotId>) -> bool;

    /// Inactive blocks.
    fn len(&self) -> usize;

    /// Whether no block is inactive.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}
