use crate::route::{ConfigError, QueueFull, SelectError};
use std::time::Duration;

/// Why the router chose no worker.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum RouteError {
    /// A setting or a hint of the request is invalid.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// No worker may receive the request, or all are busy.
    #[error(transparent)]
    Select(#[from] SelectError),
    /// The router already has an active request with this id.
    #[error("a request with this request id is under way: free it first, or choose another id")]
    DuplicateId,
    /// All workers are over the queue threshold, and the queue is full.
    #[error("all workers have enough to compute, and the queue is full: try again later")]
    QueueFull,
    /// All workers were over the queue threshold for as long as the request may wait.
    #[error("all workers had enough to compute for {0:?}, as long as the request may wait")]
    QueueTimeout(Duration),
}

impl From<QueueFull<()>> for RouteError {
    fn from(_full: QueueFull<()>) -> Self {
        Self::QueueFull
    }
}
