//! A request in an engine: waiting, receiving its prompt, or running (pure).

use super::job::{Job, Terms};
use super::model::Nanos;
use crate::engine::pool::BlockId;
use std::ops::Deref;

/// A waiting request.
#[derive(Debug)]
pub(crate) struct Waiting<J> {
    pub(super) id: usize,
    pub(crate) job: J,
    pub(crate) terms: Terms,
}

/// A running request.
#[derive(Debug)]
pub(crate) struct Run<J> {
    pub(super) id: usize,
    pub(crate) job: J,
    pub(super) terms: Terms,
    pub(super) is_cancelled: bool,
    /// Total number of tokens to compute.
    pub(crate) total: usize,
    /// Start of the first step with the request.
    pub(super) begun: Nanos,
    /// Number of tokens whose keys and values are in the pool at the end of the current step.
    pub(crate) computed: usize,
    /// Number of answer tokens sent.
    pub(super) out: usize,
    pub(super) hit_tokens: usize,
    /// Tokens per block.
    pub(super) block_size: usize,
    pub(super) blocks: Vec<BlockId>,
    /// Number of reserved blocks that are not allocated yet.
    pub(super) reserved: usize,
    /// Number of blocks taken from the free ones, including reserved ones.
    pub(crate) taken: usize,
    /// Number of leading blocks that other requests had, too.
    pub(super) common_blocks: usize,
}

/// A request whose keys and values are being transferred from another engine.
#[derive(Debug)]
pub(super) struct Receiving<J> {
    /// End of the transfer.
    pub(super) at: Nanos,
    pub(super) run: Run<J>,
}

// === impl Run ===

impl<J: Deref<Target = Job>> Run<J> {
    /// Time when the fetched blocks are present; none if the request already has as many.
    pub(super) fn fetched_at(&self) -> Option<Nanos> {
        let fetch = self.terms.fetch.filter(|_| self.fetched_tokens() > self.computed)?;
        Some(fetch.at)
    }

    /// Number of leading tokens present after the fetch. The last token is always computed.
    pub(super) fn fetched_tokens(&self) -> usize {
        let blocks = self.terms.fetch.map_or(0, |fetch| fetch.blocks);
        let most = (self.job.prompt_tokens - 1) / self.block_size;
        blocks.min(most) * self.block_size
    }

    /// Number of steps, after the current one, in which the request takes no block, completes none, and does not end
    /// before the last step.
    pub(super) fn quiet_steps(&self, block_size: usize) -> usize {
        let inside = self.computed % block_size;
        let to_boundary = if inside == 0 { 0 } else { block_size - 1 - inside };
        to_boundary.min(self.total - self.computed)
    }
}
