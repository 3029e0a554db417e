use std::fmt::{Debug, Display};
use thiserror::Error;

/// A block did not go on, and is still its owner's.
#[derive(Debug, Error)]
#[error("{reason}")]
pub struct BlockRefused<B: Debug, E: Debug + Display> {
    /// Why.
    pub reason: E,
    /// The block, as it was.
    pub block: B,
}

/// Why a block can't be committed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum CommitError {
    /// It is not full.
    #[error("the block has {tokens} of {block_tokens} tokens")]
    NotFull {
        /// Tokens in it.
        tokens: usize,
        /// Tokens of a full block.
        block_tokens: usize,
    },
}

/// Position and parent of a block do not fit one another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("a block has a parent unless its position is 0")]
pub struct IdentityError;
