//! Determines what one agent sends to another: complete blocks or parts.

use super::part::{PartError, PartPlan};
use crate::wire::{BlockDescription, Differs, Shard, WireError};
use std::sync::Arc;

/// Why two agents can't exchange blocks.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ExchangeError {
    /// The agents' blocks are different.
    #[error(transparent)]
    Differs(#[from] Differs),
    /// A description is invalid.
    #[error("{0}")]
    Invalid(String),
    /// The blocks are the same, but their layouts can't be converted.
    #[error("blocks of these layouts are not converted: {0}")]
    Plan(#[from] PartError),
}

impl From<WireError> for ExchangeError {
    fn from(error: WireError) -> Self {
        Self::Invalid(error.to_string())
    }
}

/// The bytes that an owner sends of each block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Exchange {
    /// The complete block: both agents have the same layout.
    Whole,
    /// The part of the block that the receiver needs.
    Part(Arc<PartPlan>),
}

impl Exchange {
    /// Determines what `owner` sends to `receiver`. Takes time in proportion to the tokens and layers of a block.
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

    /// Bytes sent for a block of `block_bytes` bytes.
    #[must_use]
    pub fn payload_bytes(&self, block_bytes: u64) -> u64 {
        match self {
            Self::Whole => block_bytes,
            Self::Part(plan) => plan.bytes() as u64,
        }
    }

    /// Whether the owner has no bytes that the receiver needs.
    #[must_use]
    pub fn is_nothing(&self) -> bool {
        matches!(self, Self::Part(plan) if plan.bytes() == 0)
    }
}

/// The part of the heads in the described blocks.
///
/// # Errors
/// [`WireError`] if the description is invalid.
pub fn shard_of(described: &BlockDescription) -> Result<Shard, WireError> {
    Ok(described.rank()?.map_or(Shard::WHOLE, |rank| rank.shard()))
}
