//! Restoring a worker from its images.
//!
//! [`Saved`] collects the images, in any order. [`Restore`] sorts them so that parents come first, by
//! the slots of the time, and feeds the index in steps. It cannot replay events, since a name may be
//! below positions that the worker no longer holds. Restoring makes such a position again, unheld,
//! right before what is held below it.
//!
//! Images come from a disk. [`Saved`] refuses impossible ones before they reach the index. Restoring
//! parks or drops blocks without a way to the root, and counts them; then the worker's sources are
//! partial.

mod order;
mod place;
mod saved;
mod steps;

pub use saved::Saved;
pub use steps::{Restore, RestoreStep, Restored};
