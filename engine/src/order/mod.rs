//! Puts a source's batches into order. This is the part that two state machines share: the `Sequencer` of an engine's
//! sockets, and the `Recovery` of pushed events. It has the loop from inputs to steps (`core.rs`), the reorder buffer,
//! the counts of outcomes, the reaction to losses, and the rounds that request missing batches.

mod buffer;
mod core;
#[cfg(test)]
mod dice_test;
mod held;
mod jitter;
mod outcomes;
mod rounds;

pub(crate) use buffer::{Buffer, Numbered};
pub(crate) use core::{Bounds, Core, LossSteps, Machine, assert_facts, next_step};
#[cfg(test)]
pub(crate) use dice_test::Dice;
pub use held::{HELD_BYTES_MAX, HeldBytes, HeldShare};
pub(crate) use jitter::{BackOff, Jitter};
pub use outcomes::OutcomeCounts;
pub(crate) use rounds::{Pacing, Rounds};

/// Default maximum of live batches of one source that are buffered while earlier ones are fetched.
pub const BUFFER_BATCHES_MAX: usize = 4_096;
/// Default maximum bytes of one source's live batches that are buffered while earlier ones are fetched.
pub const BUFFER_BYTES_MAX: usize = 16 << 20;

/// An ordered item: the payload of a batch.
pub trait Item {
    /// Memory of the item, in bytes.
    fn bytes(&self) -> usize;
}
