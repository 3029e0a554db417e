use crate::identity::SlotId;

/// The state of a block in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum BlockState {
    /// Nothing is in it. No sequence has it.
    Reset,
    /// Its owner fills it with tokens.
    Partial,
    /// It is full, and only its owner sees it.
    Complete,
    /// Everyone finds it by its sequence hash.
    Registered,
}

/// What blocks in any state have.
pub trait Block {
    /// The state.
    const STATE: BlockState;

    /// The block's place in its tier's storage.
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
