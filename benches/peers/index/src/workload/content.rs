//! Blocks and operations.
//!
//! What an engine announces is kept as numbers of blocks, not as any index's own type: it is
//! turned into that a thousand operations at a time, outside the timed part. So no index is
//! charged for making its input, none profits from input that lies in memory in its own form, and
//! what an index frees of its input is small and freed before memory is measured.

use crate::random::mix;
use kvasir_proto::hash::sequence_hashes;
use kvasir_proto::types::LocalHash;

/// Blocks of one seed are fewer than 2 to this.
const SEED_SHIFT: u32 = 40;

/// Consecutive blocks of one chain, as numbers into [`Content`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) start: u32,
    pub(crate) len: u32,
}

impl Span {
    pub(crate) fn end(self) -> u32 {
        self.start + self.len
    }
}

/// Every block there is: its name, the same for each engine, and its local hash.
#[derive(Debug, Default)]
pub(crate) struct Content {
    /// Contents of different seeds have no block in common.
    seed: u64,
    names: Vec<u64>,
    locals: Vec<u64>,
}

impl Content {
    pub(crate) fn new(seed: u64, blocks: usize) -> Self {
        let list = || Vec::with_capacity(blocks);
        Self { seed, names: list(), locals: list() }
    }

    /// Adds a chain of new blocks after the span `prefix`, which starts at the root.
    pub(crate) fn add(&mut self, prefix: Option<Span>, len: usize) -> Span {
        let start = self.locals.len();
        let fresh = (start..start + len).map(|block| mix(self.seed << SEED_SHIFT | block as u64));
        let before: &[u64] = prefix.map_or(&[], |prefix| self.locals(prefix));
        let chain: Vec<LocalHash> = before.iter().copied().chain(fresh).map(LocalHash).collect();
        let known = chain.len() - len;
        self.locals.extend(chain[known..].iter().map(|local| local.0));
        self.names.extend(sequence_hashes(&chain).skip(known).map(|name| name.0));
        Span { start: start as u32, len: len as u32 }
    }

    pub(crate) fn name(&self, block: u32) -> u64 {
        self.names[block as usize]
    }

    /// Local hashes of a span.
    pub(crate) fn locals(&self, span: Span) -> &[u64] {
        &self.locals[span.start as usize..span.end() as usize]
    }

    /// (name, local hash) of each block of a span.
    pub(crate) fn blocks(&self, span: Span) -> impl ExactSizeIterator<Item = (u64, u64)> + '_ {
        let names = &self.names[span.start as usize..span.end() as usize];
        names.iter().copied().zip(self.locals(span).iter().copied())
    }
}

/// What an engine does.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Action {
    /// Stores a span after the block `parent`.
    Store { parent: Option<u32>, blocks: Span },
    /// Removes the blocks that a span of the script's list names.
    Remove { listed: Span },
}

/// One event of one worker.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Operation {
    pub(crate) worker: u32,
    pub(crate) action: Action,
}

/// Operations in the order in which they are applied.
#[derive(Debug, Default)]
pub(crate) struct Script {
    operations: Vec<Operation>,
    /// Blocks that removals name.
    removed: Vec<u32>,
    blocks: usize,
}

impl Script {
    pub(crate) fn store(&mut self, worker: u32, parent: Option<u32>, blocks: Span) {
        self.blocks += blocks.len as usize;
        self.operations.push(Operation { worker, action: Action::Store { parent, blocks } });
    }

    pub(crate) fn remove(&mut self, worker: u32, blocks: impl IntoIterator<Item = u32>) {
        let start = self.removed.len();
        self.removed.extend(blocks);
        let len = self.removed.len() - start;
        self.blocks += len;
        let listed = Span { start: start as u32, len: len as u32 };
        self.operations.push(Operation { worker, action: Action::Remove { listed } });
    }

    pub(crate) fn operations(&self) -> &[Operation] {
        &self.operations
    }

    /// Numbers of the blocks of a removal.
    pub(crate) fn removed(&self, listed: Span) -> &[u32] {
        &self.removed[listed.start as usize..listed.end() as usize]
    }

    /// Block operations in it.
    pub(crate) fn blocks(&self) -> usize {
        self.blocks
    }
}
