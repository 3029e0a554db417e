use super::state::in_state;
use super::{BlockRefused, CommitError, CompleteBlock};
use crate::identity::BlockIdentity;
use crate::store::Held;
use crate::tier::TierMarker;
use kvasir_proto::hash::{Seed, local_hash, tokens_le};
use std::fmt;
use std::marker::PhantomData;
use thiserror::Error;

/// The block has no room for another token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("the block is full")]
pub struct BlockFull;

/// A block that its owner fills with tokens (state Partial). Dropping it frees the slot.
#[must_use]
pub struct PartialBlock<T> {
    pub(super) held: Held,
    salt_hash: Seed,
    before: Option<BlockIdentity>,
    tokens: Vec<u32>,
    multimodal: Vec<u64>,
    tier: PhantomData<fn() -> T>,
}

in_state!(PartialBlock, Partial);

impl<T: TierMarker> PartialBlock<T> {
    pub(super) fn new(held: Held, salt_hash: Seed, before: Option<BlockIdentity>) -> Self {
        let tokens = Vec::with_capacity(held.shared().config.block_tokens as usize);
        Self { held, salt_hash, before, tokens, multimodal: Vec::new(), tier: PhantomData }
    }

    /// Tokens of a full block.
    #[must_use]
    pub fn block_tokens(&self) -> usize {
        self.held.shared().config.block_tokens as usize
    }

    /// Number of tokens in the block.
    #[must_use]
    pub const fn tokens(&self) -> usize {
        self.tokens.len()
    }

    /// Number of tokens that still fit.
    #[must_use]
    pub fn room(&self) -> usize {
        self.block_tokens() - self.tokens.len()
    }

    /// Appends a token.
    ///
    /// # Errors
    /// [`BlockFull`] if the block is full.
    pub fn add_token(&mut self, token: u32) -> Result<(), BlockFull> {
        if self.room() == 0 {
            return Err(BlockFull);
        }
        self.tokens.push(token);
        Ok(())
    }

    /// Appends as many tokens as fit, and returns the rest for the next block.
    #[must_use = "the rest belongs into the next block"]
    pub fn add_tokens<'a>(&mut self, tokens: &'a [u32]) -> &'a [u32] {
        let (fit, rest) = tokens.split_at(self.room().min(tokens.len()));
        self.tokens.extend_from_slice(fit);
        rest
    }

    /// Adds the hash of multimodal content that spans tokens of the block, computed by
    /// [`kvasir_proto::hash::multimodal_hash`]. Call it once per span; at most one span begins at each token.
    ///
    /// # Errors
    /// [`BlockFull`] if the block has as many spans as tokens.
    pub fn add_multimodal(&mut self, hash: u64) -> Result<(), BlockFull> {
        if self.multimodal.len() >= self.block_tokens() {
            return Err(BlockFull);
        }
        self.multimodal.push(hash);
        Ok(())
    }

    /// Partial → Complete: computes the block's hashes from its tokens, as a query for the prompt does.
    ///
    /// # Errors
    /// [`CommitError::NotFull`], together with the block.
    pub fn commit(mut self) -> Result<CompleteBlock<T>, BlockRefused<Self, CommitError>> {
        let block_tokens = self.block_tokens();
        if self.tokens.len() < block_tokens {
            let reason = CommitError::NotFull { tokens: self.tokens.len(), block_tokens };
            return Err(BlockRefused { reason, block: self });
        }
        self.multimodal.sort_unstable();
        let local = local_hash(&tokens_le(&self.tokens), &self.multimodal, self.salt_hash);
        let identity = match &self.before {
            None => BlockIdentity::first(local),
            Some(before) => before.next(local),
        };
        Ok(CompleteBlock::new(self.held, identity))
    }
}

/// Omits the tokens, because they are prompts.
impl<T> fmt::Debug for PartialBlock<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PartialBlock")
            .field("slot", &self.held.slot())
            .field("before", &self.before)
            .field("tokens", &self.tokens.len())
            .finish_non_exhaustive()
    }
}
