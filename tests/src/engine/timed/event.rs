//! What happens in an engine with time.

use super::model::Nanos;

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
    FirstToken(usize),
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
    /// Blocks of a request became complete.
    Stored {
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
        /// Its name.
        name: u64,
        /// Copies of it that remain.
        remaining: u32,
    },
}
