use crate::identity::SlotId;

/// The state of a block in its lifecycle.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum BlockState {
    /// The block is empty and belongs to no sequence.
    Reset,
    /// The owner fills the block with tokens.
    Partial,
    /// The block is full, and only its owner can access it.
    Complete,
    /// The block can be found by its sequence hash.
    Registered,
}

/// Common interface of the block types of all states.
pub trait Block {
    /// The state of this type.
    const STATE: BlockState;

    /// The block's slot in its tier's storage.
    fn slot(&self) -> SlotId;
}

macro_rules! in_state {
    ($block:ident, $state:ident) => {
        impl<T> crate::lifecycle::Block for $block<T> {
            const STATE: crate::lifecycle::BlockState = crate::lifecycle::BlockState::$state;

            fn slot(&self) -> crate::identity::SlotId {
                self.held.slot()
            }
        }
    };
}
pub(super) use in_state;
