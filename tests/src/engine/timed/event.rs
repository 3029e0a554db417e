//! What happens in an engine with time.

use super::model::Nanos;
use kvasir_proto::types::Tier;

/// Something that happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Timed {
    /// When.
    pub at: Nanos,
    /// What.
    pub event: Event,
}

/// What happens in an engine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// Its cache changed; in the order of the changes.
    Cache(Vec<CacheChange>),
    /// The first token of a request is out.
    FirstToken {
        /// The request.
        id: usize,
        /// When the first step with it began.
        begun: Nanos,
    },
    /// A request has ended.
    Finished {
        /// The request.
        id: usize,
        /// Tokens of its prompt that were found in the cache.
        hit_tokens: usize,
    },
}

/// A change of a cache.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CacheChange {
    /// Blocks of a request became complete, or were written to a tier below device memory.
    Stored {
        /// Where.
        tier: Tier,
        /// The request.
        id: usize,
        /// Index of the first of them in the request.
        first: usize,
        /// Their names.
        names: Vec<u64>,
        /// Name of the block before them; none at the start of a prompt.
        parent: Option<u64>,
    },
    /// One copy of a block was evicted.
    Removed {
        /// Where.
        tier: Tier,
        /// Its name.
        name: u64,
        /// Copies of it that remain there.
        remaining: u32,
    },
}
