//! Restores a worker from its images.
//!
//! [`Saved`] collects the images, in any order. [`Restore`] sorts them by the saved slots so that parents
//! come first, and feeds the index in slices. It cannot replay events, because a name may be below positions
//! that the worker no longer holds. Restoring creates such a position again, unheld, directly before the
//! blocks below it.
//!
//! Images come from a disk. [`Saved`] rejects impossible ones before they reach the index. Restoring parks or
//! drops blocks without a path to the root, and counts them. The worker's sources are then partial.

mod order;
mod place;
mod saved;
mod steps;

pub use saved::Saved;
pub use steps::{Restore, RestoreStep, Restored};
