//! What every way of putting a source's batches in order needs: room for those that came before
//! their turn, outcomes, losses, and when to try again.

mod buffer;
#[cfg(test)]
mod dice_test;
mod held;
mod jitter;
mod outcomes;

pub(crate) use buffer::{Buffer, Numbered};
#[cfg(test)]
pub(crate) use dice_test::Dice;
pub use held::{HELD_BYTES_MAX, HeldBytes, HeldShare};
pub(crate) use jitter::{BackOff, Jitter};
pub use outcomes::OutcomeCounts;

/// Live batches of one source held back while those before them are fetched, by default.
pub const BUFFER_BATCHES_MAX: usize = 4_096;
/// Bytes of live batches of one source held back while those before them are fetched, by default.
pub const BUFFER_BYTES_MAX: usize = 16 << 20;

/// What is put in order: the payload of a batch.
pub trait Item {
    /// Memory it takes, in bytes.
    fn bytes(&self) -> usize;
}
