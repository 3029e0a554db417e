//! Sizes of an index: blocks, workers, and bytes.

use crate::holder::Holder;
use crate::index::Index;
use crate::source::{Source, Worker};

/// Sizes of an index.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Stats {
    /// Distinct positions that are held, or are ancestors of held ones.
    pub blocks: u64,
    /// (rank, position) pairs that are held.
    pub pairs: u64,
    /// Held names that are not placed.
    pub parked: u64,
    /// Number of workers.
    pub workers: u64,
    /// Number of ranks.
    pub ranks: u64,
    /// Number of sources.
    pub sources: u64,
    /// Runs of positions with one set of holders per tier.
    pub segments: u64,
    /// Distinct sets of two or more holders.
    pub holder_sets: u64,
    /// Bytes allocated, by the index's own accounting.
    pub bytes: u64,
    /// Blocks missing because of the byte budget: evicted or, as a consequence, rejected.
    pub shed_blocks: u64,
}

impl Index {
    /// Bytes allocated, by the index's own accounting: all tables to the byte, including their free entries.
    /// A running total, O(1).
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.trie.bytes()
            + self.totals.bytes
            + self.holders.capacity() * size_of::<usize>()
            + self.sources.len() * size_of::<Source>()
            + self.workers.len() * size_of::<Worker>()
    }

    /// Bytes of [`Index::bytes`] that workers, sources and ranks take without any block. They cannot be
    /// evicted.
    #[must_use]
    pub fn fixed_bytes(&self) -> usize {
        self.ranks() * size_of::<Holder>()
            + self.holders.capacity() * size_of::<usize>()
            + self.sources.len() * size_of::<Source>()
            + self.workers.len() * size_of::<Worker>()
    }

    /// Bytes of [`Index::bytes`] that new positions can use before more memory is allocated. Evictions
    /// increase it.
    #[must_use]
    pub fn free_bytes(&self) -> usize {
        self.trie.slots.free_bytes() + self.trie.segments.free_bytes()
    }

    /// Number of ranks.
    #[must_use]
    pub const fn ranks(&self) -> usize {
        self.holders.len() - self.free_holders.len()
    }

    /// Number of ranks with several KV-cache groups.
    #[must_use]
    pub const fn grouped_ranks(&self) -> usize {
        self.totals.grouped_ranks
    }

    /// Whether [`Index::shed`] can evict anything.
    #[must_use]
    pub const fn is_sheddable(&self) -> bool {
        self.totals.parked > 0 || self.trie.slots.used() > 0
    }

    /// Computes all sizes. O(ranks).
    #[must_use]
    pub fn stats(&self) -> Stats {
        let holders = || self.holders.iter().flatten();
        Stats {
            blocks: self.trie.slots.used() as u64,
            pairs: holders().map(|holder| holder.placed()).sum(),
            parked: self.totals.parked as u64,
            workers: self.workers.len() as u64,
            ranks: holders().count() as u64,
            sources: self.sources.len() as u64,
            segments: self.trie.segments.used() as u64,
            holder_sets: self.trie.sets.used() as u64,
            bytes: self.bytes() as u64,
            shed_blocks: holders().map(|holder| holder.shed_blocks()).sum(),
        }
    }
}
