//! A request in an engine: waiting, receiving its prompt, or running (pure).

use super::job::{Job, Terms};
use super::model::Nanos;
use crate::engine::pool::BlockId;
use std::ops::Deref;

/// A request that waits.
#[derive(Debug)]
pub(crate) struct Waiting<J> {
    pub(super) id: usize,
    pub(crate) job: J,
    pub(crate) terms: Terms,
}

/// A request that runs.
#[derive(Debug)]
pub(crate) struct Run<J> {
    pub(super) id: usize,
    pub(crate) job: J,
    pub(super) terms: Terms,
    pub(super) is_cancelled: bool,
    /// Tokens that are computed in all.
    pub(crate) total: usize,
    /// When the first step with it began.
    pub(super) begun: Nanos,
    /// Tokens whose keys and values are in the pool once the step under way ends.
    pub(crate) computed: usize,
    /// Tokens of its answer that are out.
    pub(super) out: usize,
    pub(super) hit_tokens: usize,
    /// Tokens of a block.
    pub(super) block_size: usize,
    pub(super) blocks: Vec<BlockId>,
    /// Blocks reserved and not allocated yet.
    pub(super) reserved: usize,
    /// Blocks that it took from the free ones, reserved ones included.
    pub(crate) taken: usize,
}

/// A request whose keys and values are on their way from another engine.
#[derive(Debug)]
pub(super) struct Receiving<J> {
    /// When they are here.
    pub(super) at: Nanos,
    pub(super) run: Run<J>,
}

// === impl Run ===

impl<J: Deref<Target = Job>> Run<J> {
    /// When the blocks are there that it needs from other engines; none if it has as many.
    pub(super) fn fetched_at(&self) -> Option<Nanos> {
        let fetch = self.terms.fetch.filter(|_| self.fetched_tokens() > self.computed)?;
        Some(fetch.at)
    }

    /// Leading tokens that are there once they have arrived. The last token is always computed.
    pub(super) fn fetched_tokens(&self) -> usize {
        let blocks = self.terms.fetch.map_or(0, |fetch| fetch.blocks);
        let most = (self.job.prompt_tokens - 1) / self.block_size;
        blocks.min(most) * self.block_size
    }

    /// Further steps after the one under way in which it takes no block, completes none and does not end before the
    /// last.
    pub(super) fn quiet_steps(&self, block_size: usize) -> usize {
        let inside = self.computed % block_size;
        let to_boundary = if inside == 0 { 0 } else { block_size - 1 - inside };
        to_boundary.min(self.total - self.computed)
    }
}
