use crate::route::{ConfigError, QueueFull, SelectError};
use std::time::Duration;

/// Why no worker is chosen.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum RouteError {
    /// A setting, or what the request sets itself, cannot be used.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// No worker may have the request, or all are busy.
    #[error(transparent)]
    Select(#[from] SelectError),
    /// The router has a request under way with this id.
    #[error("a request with this request id is under way: free it first, or choose another id")]
    DuplicateId,
    /// All workers have enough to compute, and as many requests wait as may.
    #[error("all workers have enough to compute, and the queue is full: try again later")]
    QueueFull,
    /// All workers had enough to compute for as long as the request may wait.
    #[error("all workers had enough to compute for {0:?}, as long as the request may wait")]
    QueueTimeout(Duration),
}

impl From<QueueFull<()>> for RouteError {
    fn from(_full: QueueFull<()>) -> Self {
        Self::QueueFull
    }
}
