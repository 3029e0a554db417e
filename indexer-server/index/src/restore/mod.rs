//! A worker comes back from its images.
//!
//! What was kept of it is collected in [`Saved`], in any order. [`Restore`] puts parents first, by the
//! slots of the time, and feeds the index in steps. It is not given back as events, since a name may
//! stand below positions that the worker does not hold any more: those are made again, held by
//! nobody, right before what is held below them.
//!
//! Images come from a disk. What cannot be is refused before the index is touched; what leads nowhere
//! is parked or dropped, and counted, and then the worker's sources are partial.

mod order;
mod place;
mod saved;
mod steps;

pub use saved::Saved;
pub use steps::{Restore, RestoreStep, Restored};
