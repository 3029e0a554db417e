//! What a decision and the end of a request consist of.

use super::index::IndexUse;
use super::waiting::Queued;
use crate::route::Decision;
use kvasir_proto::types::WorkerKey;
use std::time::Duration;

/// A decision with all that led to it.
#[derive(Debug)]
pub struct Choice {
    /// How the rank was chosen, and why.
    pub decision: Decision,
    /// What the index contributed.
    pub index_use: IndexUse,
    /// What waiting cost; none if the request did not wait.
    pub queued: Option<Queued>,
    /// How long the choice itself took.
    pub choosing: Duration,
}

/// How a request ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Ended {
    /// Whether its worker failed it. None if that is not known or not the worker's doing, as when the client hung up; a
    /// worker that put out a token did not fail then.
    pub has_failed: Option<bool>,
    /// Tokens of its prompt that its worker had cached, as the engine reports them.
    pub cached_tokens: Option<u64>,
}

/// A request that has ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Freed {
    /// Where it was.
    pub worker: WorkerKey,
    /// Tokens of its prompt that were expected in its worker's cache, in whatever tier.
    pub expected_cached_tokens: u64,
    /// Those that its worker reported.
    pub cached_tokens: Option<u64>,
}
