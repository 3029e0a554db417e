use std::fmt::{Debug, Display};
use thiserror::Error;

/// A state transition was refused. Returns the block to its owner.
#[derive(Debug, Error)]
#[error("{reason}")]
pub struct BlockRefused<B: Debug, E: Debug + Display> {
    /// Why the transition was refused.
    pub reason: E,
    /// The unchanged block.
    pub block: B,
}

/// Why a block can't be committed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum CommitError {
    /// The block is not full.
    #[error("the block has {tokens} of {block_tokens} tokens")]
    NotFull {
        /// Tokens in the block.
        tokens: usize,
        /// Tokens of a full block.
        block_tokens: usize,
    },
}

/// Position and parent of a block contradict each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("a block has a parent unless its position is 0")]
pub struct IdentityError;
