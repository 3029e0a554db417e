//! What is sent on one connection.

use super::part::{PartError, PartPlan};
use crate::wire::{BlockDescription, Differs, Shard, WireError};
use std::sync::Arc;

/// Why two agents can't exchange blocks.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ExchangeError {
    /// Their blocks are others.
    #[error(transparent)]
    Differs(#[from] Differs),
    /// One of the descriptions is none.
    #[error("{0}")]
    Invalid(String),
    /// Their blocks are the same, and there is no plan between their layouts.
    #[error("blocks of these layouts are not converted: {0}")]
    Plan(#[from] PartError),
}

impl From<WireError> for ExchangeError {
    fn from(error: WireError) -> Self {
        Self::Invalid(error.to_string())
    }
}

/// What an owner sends of each block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Exchange {
    /// The block as it is: both agents have the same layout.
    Whole,
    /// What the receiver needs of it.
    Part(Arc<PartPlan>),
}

impl Exchange {
    /// What `owner` sends to `receiver`. Takes time in proportion to the tokens and layers of a block.
    ///
    /// # Errors
    /// [`ExchangeError`] names the field that differs.
    pub fn new(
        owner: &BlockDescription,
        receiver: &BlockDescription,
    ) -> Result<Self, ExchangeError> {
        owner.agree(receiver)?;
        let (Some(from), Some(to)) = (owner.rank()?, receiver.rank()?) else {
            return Ok(Self::Whole);
        };
        if (from.block(), from.shard()) == (to.block(), to.shard()) {
            return Ok(Self::Whole);
        }
        Ok(Self::Part(Arc::new(PartPlan::new(&from, &to)?)))
    }

    /// Bytes that are sent of a block of `block_bytes` bytes.
    #[must_use]
    pub fn payload_bytes(&self, block_bytes: u64) -> u64 {
        match self {
            Self::Whole => block_bytes,
            Self::Part(plan) => plan.bytes() as u64,
        }
    }

    /// Whether the owner has nothing of what the receiver needs.
    #[must_use]
    pub fn is_nothing(&self) -> bool {
        matches!(self, Self::Part(plan) if plan.bytes() == 0)
    }
}

/// The part of the heads that the blocks of a description hold.
///
/// # Errors
/// [`WireError`] if the description is none.
pub fn shard_of(described: &BlockDescription) -> Result<Shard, WireError> {
    Ok(described.rank()?.map_or(Shard::WHOLE, |rank| rank.shard()))
}
