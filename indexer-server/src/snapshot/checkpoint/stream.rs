//! How far of the broker's stream a checkpoint covers.

use crate::snapshot::StreamPosition;
use std::sync::Arc;
use tokio::sync::watch;

/// Says how far the broker's stream was consumed: every message up to this one was answered, and the
/// index has what it said. None while nothing is consumed.
pub type Positions = Arc<dyn Fn() -> Option<StreamPosition> + Send + Sync>;

/// A stream whose position is kept with checkpoints.
pub(super) struct Stream {
    pub(super) position: Positions,
    /// The position on disk, for whoever tells the broker.
    pub(super) on_disk: watch::Sender<Option<StreamPosition>>,
}

impl Stream {
    /// Tells the position that is on disk, if it is another one.
    pub(super) fn publish(&self, stored: Option<StreamPosition>) {
        self.on_disk.send_if_modified(|known| {
            let is_new = *known != stored;
            *known = stored;
            is_new
        });
    }
}
