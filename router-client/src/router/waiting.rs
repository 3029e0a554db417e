//! Requests that wait for a rank with room.

use super::config::Filter;
use std::time::Duration;
use tokio::sync::oneshot;

/// What the queue has of a request that waits.
#[derive(Debug)]
pub(super) struct Waiter {
    pub(super) filter: Filter,
    pub(super) release: oneshot::Sender<Duration>,
}

/// What waiting cost a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Queued {
    /// How many of its lane were ahead of it when it came.
    pub position: usize,
    /// How long it waited.
    pub waited: Duration,
}
