//! Checkpoints: what the index holds, on disk, and the way back.
//!
//! # What is promised
//! What is on disk of a worker is always one state that the index had: blocks and cursors of one
//! moment. A process that is killed at any instant comes back with the last state that was written, and
//! its sources go on from there. A checkpoint that fails changes nothing; the next one writes what it
//! was to write.
//!
//! # How
//! [`Checkpointer`] asks the writer thread for an image of each worker that changed: pages of slots
//! that changed since the last image, with the sources' cursors of that moment. Images are handed to
//! [`Store`], which writes each as a whole or not at all. [`Restorer`] reads them back.

mod checkpointer;
mod config;
mod error;
mod format;
mod metrics;
mod restore;
mod store;

pub use checkpointer::{Checkpointer, Checkpoints, Registry, Report, Roster};
pub use config::CheckpointConfig;
pub use error::CheckpointError;
pub use metrics::{CheckpointFigures, CheckpointMetrics};
pub use restore::{RestoreError, RestoredSource, RestoredWorker, Restorer};
pub use store::{Change, Store, StoreError, StoredWorker, Written};
