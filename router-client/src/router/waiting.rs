//! Requests that wait for a rank with room.

use super::config::Filter;
use std::time::Duration;
use tokio::sync::oneshot;

/// The queue's entry for a waiting request.
#[derive(Debug)]
pub(super) struct Waiter {
    pub(super) filter: Filter,
    pub(super) release: oneshot::Sender<Duration>,
}

/// A request's wait in the queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Queued {
    /// Number of requests ahead in its lane on arrival.
    pub position: usize,
    /// Time that the request waited.
    pub waited: Duration,
}
