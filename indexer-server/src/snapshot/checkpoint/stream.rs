//! How far of the broker's stream a checkpoint covers.

use crate::snapshot::StreamPosition;
use std::sync::Arc;
use tokio::sync::watch;

/// Returns how far the broker's stream is in the index: every message up to this one was answered. None while
/// nothing is consumed.
pub type Positions = Arc<dyn Fn() -> Option<StreamPosition> + Send + Sync>;

/// A stream whose position is persisted with checkpoints.
pub(super) struct Stream {
    pub(super) position: Positions,
    /// The position on disk, for the task that posts it to the broker.
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
