//! Position in the broker's stream up to which a checkpoint has all messages.

use crate::snapshot::StreamPosition;
use std::sync::Arc;
use tokio::sync::watch;

/// Returns the position of the broker's stream in the index: every message up to it was answered. `None` while no
/// stream is consumed.
pub type Positions = Arc<dyn Fn() -> Option<StreamPosition> + Send + Sync>;

/// A stream whose position is persisted with checkpoints.
pub(super) struct Stream {
    pub(super) position: Positions,
    /// The position on disk, for the task that publishes it to the broker.
    pub(super) on_disk: watch::Sender<Option<StreamPosition>>,
}

impl Stream {
    /// Publishes the position on disk, if it has changed.
    pub(super) fn publish(&self, stored: Option<StreamPosition>) {
        self.on_disk.send_if_modified(|known| {
            let is_new = *known != stored;
            *known = stored;
            is_new
        });
    }
}
