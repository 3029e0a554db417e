//! Checkpoints of a running server: a task that writes what changed, and the way back at start.

mod error;
mod keeper;
mod metrics;
mod restore;
mod stream;
mod task;

pub use error::CheckpointError;
pub use keeper::Keeper;
pub use metrics::{CheckpointFigures, CheckpointMetrics};
pub use restore::{RestoreError, Restorer};
pub use stream::Positions;
pub use task::{CheckpointConfig, Checkpointer, Checkpoints, Registry, Report, Roster};
