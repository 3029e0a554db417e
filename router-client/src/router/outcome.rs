//! Results of a decision and of a request's end.

use super::index::IndexUse;
use super::waiting::Queued;
use crate::route::Decision;
use kvasir_proto::types::WorkerKey;
use std::time::Duration;

/// A decision with the data that led to it.
#[derive(Debug)]
pub struct Choice {
    /// The chosen rank, and why it was chosen.
    pub decision: Decision,
    /// The index's contribution.
    pub index_use: IndexUse,
    /// The request's wait in the queue; `None` if it did not wait.
    pub queued: Option<Queued>,
    /// Duration of the choice, without hashing, index and queue.
    pub choosing: Duration,
}

/// How a request ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Ended {
    /// Whether the worker failed the request. `None` if unknown or not the worker's fault, for example if the client
    /// disconnected; then a worker that produced a token counts as successful.
    pub has_failed: Option<bool>,
    /// Prompt tokens that the worker had cached, as the engine reports.
    pub cached_tokens: Option<u64>,
}

/// Result of ending a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Freed {
    /// The rank that had the request.
    pub worker: WorkerKey,
    /// Prompt tokens that were expected in the worker's cache, over all tiers.
    pub expected_cached_tokens: u64,
    /// Prompt tokens that the engine reported as cached.
    pub cached_tokens: Option<u64>,
}
