//! What all ways of ordering a source's batches share: the loop from inputs to steps, the buffer of
//! batches that came before their turn, outcomes, losses, and the rounds that request what is
//! missing.

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

/// Live batches of one source held back while those before them are fetched, by default.
pub const BUFFER_BATCHES_MAX: usize = 4_096;
/// Bytes of live batches of one source held back while those before them are fetched, by default.
pub const BUFFER_BYTES_MAX: usize = 16 << 20;

/// What is put in order: the payload of a batch.
pub trait Item {
    /// Memory it takes, in bytes.
    fn bytes(&self) -> usize;
}
