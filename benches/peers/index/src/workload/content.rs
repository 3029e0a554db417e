//! Blocks and operations.
//!
//! Engine announcements are kept as numbers of blocks, not as any index's own type. They are converted to that type a
//! thousand operations at a time, outside the timed part. So creating input costs no index, no index profits from input
//! that lies in memory in its own form, and the input that an index frees is small and freed before memory is measured.

use crate::random::mix;
use kvasir_proto::hash::sequence_hash;
use kvasir_proto::types::{LocalHash, SequenceHash};

/// Each seed has fewer than two to the power of this number of blocks.
const SEED_SHIFT: u32 = 40;

/// Consecutive blocks of one chain, as numbers in [`Content`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) start: u32,
    pub(crate) len: u32,
}

impl Span {
    pub(crate) fn end(self) -> u32 {
        self.start + self.len
    }

    /// The last block; a span is never empty.
    pub(crate) fn last(self) -> u32 {
        self.end() - 1
    }
}

/// All blocks: the name, equal for all engines, and the local hash of each.
#[derive(Debug, Default)]
pub(crate) struct Content {
    /// Contents of different seeds have no common blocks.
    seed: u64,
    names: Vec<u64>,
    locals: Vec<u64>,
}

impl Content {
    pub(crate) fn new(seed: u64, blocks: usize) -> Self {
        let list = || Vec::with_capacity(blocks);
        Self { seed, names: list(), locals: list() }
    }

    /// Removes all blocks, but keeps their memory allocated.
    pub(crate) fn clear(&mut self, seed: u64) {
        self.seed = seed;
        self.names.clear();
        self.locals.clear();
    }

    /// Adds `len` new blocks after the block `parent`; none means the root.
    pub(crate) fn add(&mut self, parent: Option<u32>, len: usize) -> Span {
        let start = self.locals.len();
        let mut name = parent.map(|block| SequenceHash(self.name(block)));
        for block in start..start + len {
            let local = mix(self.seed << SEED_SHIFT | block as u64);
            let next = sequence_hash(name, LocalHash(local));
            self.locals.push(local);
            self.names.push(next.0);
            name = Some(next);
        }
        Span { start: start as u32, len: len as u32 }
    }

    pub(crate) fn len(&self) -> usize {
        self.names.len()
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

/// An engine's operation.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Action {
    /// Stores a span after the block `parent`.
    Store { parent: Option<u32>, blocks: Span },
    /// Removes the blocks listed in a span of the script's list.
    Remove { listed: Span },
}

/// One event of one worker.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Operation {
    pub(crate) worker: u32,
    pub(crate) action: Action,
}

impl Operation {
    /// Number of block operations.
    pub(crate) fn blocks(&self) -> usize {
        let (Action::Store { blocks: span, .. } | Action::Remove { listed: span }) = self.action;
        span.len as usize
    }
}

/// Operations in the order of application.
#[derive(Debug, Default)]
pub(crate) struct Script {
    operations: Vec<Operation>,
    /// Blocks listed by removals.
    removed: Vec<u32>,
}

impl Script {
    pub(crate) fn store(&mut self, worker: u32, parent: Option<u32>, blocks: Span) {
        self.operations.push(Operation { worker, action: Action::Store { parent, blocks } });
    }

    pub(crate) fn remove(&mut self, worker: u32, blocks: impl IntoIterator<Item = u32>) {
        let start = self.removed.len();
        self.removed.extend(blocks);
        let len = self.removed.len() - start;
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
}
