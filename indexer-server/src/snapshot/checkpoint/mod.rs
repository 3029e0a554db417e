//! Checkpoints of a running server: the task that writes changes, and the restore at start.

mod error;
mod metrics;
mod report;
mod restore;
mod shared_store;
mod stream;
mod task;

pub use error::CheckpointError;
pub use metrics::{CheckpointFigures, CheckpointMetrics};
pub use report::Report;
pub use restore::{RestoreError, Restorer};
pub use shared_store::SharedStore;
pub use stream::Positions;
pub use task::{CheckpointConfig, Checkpointer, Checkpoints, Registry, Roster};
