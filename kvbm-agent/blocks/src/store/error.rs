use crate::events::PublishError;
use crate::identity::SlotId;
use thiserror::Error;

/// The pool can't provide the requested number of blocks. It allocated and evicted none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("{wanted} blocks were requested, but only {free} are free, and {inactive} are inactive")]
pub struct Exhausted {
    /// Requested blocks.
    pub wanted: usize,
    /// Free blocks.
    pub free: usize,
    /// Inactive blocks; some may not be evictable.
    pub inactive: usize,
}

/// Why a block can't be registered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum RegisterError {
    /// The sequence hash names a different block: parent, local hash or position differ.
    #[error("the sequence hash already names a different block")]
    Conflict,
    /// Another pool of the same tier has registered the block in the same [`EventManager`](crate::EventManager).
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

/// Why a block from before the start of the process can't be registered again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum RestoreError {
    /// The pool has fewer slots than this number.
    #[error("the pool has no {0:?}")]
    NoSlot(SlotId),
    /// The slot is in use: it has another block, or is being filled.
    #[error("{0:?} is not free")]
    NotFree(SlotId),
    /// The block is already registered in another slot.
    #[error("the block is registered already, in {0:?}")]
    Duplicate(SlotId),
    /// Position and parent contradict each other: only position 0 has no parent.
    #[error("a block has a parent unless its position is 0")]
    BadIdentity,
    /// The block can't be registered in any slot.
    #[error(transparent)]
    Register(#[from] RegisterError),
}

/// The pool has its maximum number of pins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("{max} blocks are pinned, which is the limit")]
pub struct PinsExhausted {
    /// Maximum pins at a time.
    pub max: usize,
}
