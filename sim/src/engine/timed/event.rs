//! Events of an engine with step times.

use super::model::Nanos;
use kvasir_proto::types::Tier;

/// An event with its time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Timed {
    /// Time of the event.
    pub at: Nanos,
    /// The event.
    pub event: Event,
}

/// An event of an engine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// Changes of the cache, in order.
    Cache(Vec<CacheChange>),
    /// The first token of a request was sent.
    FirstToken {
        /// The request.
        id: usize,
        /// Start of the first step with the request.
        begun: Nanos,
    },
    /// A request has ended.
    Finished {
        /// The request.
        id: usize,
        /// Prompt tokens found in the cache.
        hit_tokens: usize,
    },
}

/// A change of a cache.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CacheChange {
    /// Blocks of a request became complete, or were written to a lower tier.
    Stored {
        /// Tier of the blocks.
        tier: Tier,
        /// The request.
        id: usize,
        /// Index of the first block in the request.
        first: usize,
        /// Names of the blocks.
        names: Vec<u64>,
        /// Name of the preceding block; none at the start of a prompt.
        parent: Option<u64>,
    },
    /// One copy of a block was evicted.
    Removed {
        /// Tier of the copy.
        tier: Tier,
        /// Name of the block.
        name: u64,
        /// Number of copies that remain in this tier.
        remaining: u32,
    },
    /// The state after a block was kept, by a model with state layers.
    StateStored {
        /// Name of the block.
        name: u64,
    },
    /// The state after a block was dropped.
    StateRemoved {
        /// Name of the block.
        name: u64,
    },
}
