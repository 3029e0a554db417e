use crate::events::PublishError;
use crate::identity::SlotId;
use thiserror::Error;

/// A pool can't give as many blocks as were asked for. Nothing was taken or evicted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("{wanted} blocks were asked for, {free} are free and {inactive} inactive")]
pub struct Exhausted {
    /// Blocks asked for.
    pub wanted: usize,
    /// Blocks that are free.
    pub free: usize,
    /// Blocks that are inactive; not all may be evicted.
    pub inactive: usize,
}

/// Why a block can't be registered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum RegisterError {
    /// Its sequence hash names another block, whose parent, local hash or position differ.
    #[error("the sequence hash names another block")]
    Conflict,
    /// Another pool of the same tier has registered it with the same events.
    #[error("another pool of the tier has registered the block")]
    OtherPool,
}

impl From<PublishError> for RegisterError {
    fn from(error: PublishError) -> Self {
        match error {
            PublishError::AlreadyRegistered => Self::OtherPool,
            PublishError::Conflict => Self::Conflict,
        }
    }
}

/// Why a block that was in a slot before the process began can't be registered again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum RestoreError {
    /// The pool has fewer slots.
    #[error("the pool has no {0:?}")]
    NoSlot(SlotId),
    /// The slot is in use: it has another block, or somebody fills it.
    #[error("{0:?} is not free")]
    NotFree(SlotId),
    /// The block is registered already, in another slot.
    #[error("the block is registered already, in {0:?}")]
    Duplicate(SlotId),
    /// It has a parent and position 0, or none and another position.
    #[error("a block has a parent unless its position is 0")]
    BadIdentity,
    /// It can't be registered, whatever slot it is in.
    #[error(transparent)]
    Register(#[from] RegisterError),
}

/// A pool has as many pins as it may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("{max} blocks are pinned, which is the limit")]
pub struct PinsExhausted {
    /// Most pins at a time.
    pub max: usize,
}
