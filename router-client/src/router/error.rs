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
    #[error(
        "an active request already has this request id: free that request, or choose another id"
    )]
    DuplicateId,
    /// All workers are over the queue threshold, and the queue is full.
    #[error("all workers are over the queue threshold, and the queue is full: try again later")]
    QueueFull,
    /// All workers were over the queue threshold for as long as the request may wait.
    #[error(
        "all workers stayed over the queue threshold for {0:?}, the maximum wait of the request"
    )]
    QueueTimeout(Duration),
}

impl From<QueueFull<()>> for RouteError {
    fn from(_full: QueueFull<()>) -> Self {
        Self::QueueFull
    }
}
