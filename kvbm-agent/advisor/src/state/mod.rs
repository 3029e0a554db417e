//! What is stored where, as far as it was told, and what to do about it. Times are those since some beginning.
//!
//! - `tree`: blocks by their prefixes, and the places that have them.
//! - `streams`: the batches of each place in order; what is lacking.
//! - `rules`: advice of one moment. `advice`: what it looks like. `told`: advice that was given of late.

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
