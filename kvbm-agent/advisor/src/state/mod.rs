//! State of the advisor: reported blocks by location, and the advice derived from them. Times count from a common
//! start.
//!
//! - `tree`: prefix tree of blocks, with the places that have each block.
//! - `streams`: applies the batches of each place in order, and detects missing ones.
//! - `rules`: computes advice. `advice`: format of the advice. `told`: recently given advice.

mod advice;
mod rules;
mod streams;
mod told;
mod tree;

pub use advice::{Advice, AdviceKind, AdviceReason};
pub use rules::{Rules, advise};
pub use streams::{Applied, StreamState, Streams};
pub use told::{TOLD_MAX, Told};
pub use tree::{BlockKey, PLACES_MAX, PlaceId, PlaceView, Tree};
