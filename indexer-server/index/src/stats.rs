//! Sizes.

use crate::holder::Holder;
use crate::index::Index;
use crate::source::{Source, Worker};

/// Sizes of an index.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Stats {
    /// Distinct positions: held, or leading to one that is.
    pub blocks: u64,
    /// (rank, position) pairs held.
    pub pairs: u64,
    /// Names held and not placed.
    pub parked: u64,
    /// Workers.
    pub workers: u64,
    /// Ranks.
    pub ranks: u64,
    /// Sources.
    pub sources: u64,
    /// Stretches of positions with one set of holders.
    pub segments: u64,
    /// Distinct sets of two or more holders.
    pub holder_sets: u64,
    /// Bytes allocated, by the index's own accounting.
    pub bytes: u64,
    /// Blocks that ranks lack for the byte budget: shed, or not taken since because of that.
    pub shed_blocks: u64,
}

impl Index {
    /// Bytes allocated, by the index's own accounting: all tables to the byte, whatever is free in
    /// them included. A running total, counted in O(1).
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.trie.bytes()
            + self.totals.bytes
            + self.holders.capacity() * size_of::<usize>()
            + self.sources.len() * size_of::<Source>()
            + self.workers.len() * size_of::<Worker>()
    }

    /// Bytes of [`Index::bytes`] that workers, sources and ranks take whatever they hold: they cannot be shed.
    #[must_use]
    pub fn fixed_bytes(&self) -> usize {
        self.ranks() * size_of::<Holder>()
            + self.holders.capacity() * size_of::<usize>()
            + self.sources.len() * size_of::<Source>()
            + self.workers.len() * size_of::<Worker>()
    }

    /// Bytes of [`Index::bytes`] that new positions can use before more are allocated: what is shed
    /// comes in here.
    #[must_use]
    pub fn free_bytes(&self) -> usize {
        self.trie.slots.free_bytes() + self.trie.segments.free_bytes()
    }

    /// Number of ranks.
    #[must_use]
    pub const fn ranks(&self) -> usize {
        self.holders.len() - self.free_holders.len()
    }

    /// Whether [`Index::shed`] has anything to shed.
    #[must_use]
    pub const fn is_sheddable(&self) -> bool {
        self.totals.parked > 0 || self.trie.slots.used() > 0
    }

    /// Sizes, counted in O(ranks).
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
