use super::EndpointRules;
use crate::ingest::Ingest;
use crate::partitions::{Origin, Partitions, Speculation, Writer};
use crate::query::{Finder, QueryMetrics};
use crate::snapshot::Checkpoints;
use std::sync::Arc;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// Shared components that the handlers use.
#[derive(Debug, Clone)]
pub struct Parts {
    /// All partitions.
    pub partitions: Arc<Partitions>,
    /// Answers queries.
    pub finder: Finder,
    /// Counters of queries.
    pub query_metrics: QueryMetrics,
    /// The registry of workers.
    pub ingest: Arc<Ingest>,
    /// Changes speculative blocks.
    pub speculation: Arc<Speculation>,
    /// Changes the index.
    pub writer: Writer,
    /// Requests checkpoints. `None` if the server writes no checkpoints.
    pub checkpoints: Option<Checkpoints>,
    /// Allowed endpoints in registrations.
    pub endpoints: EndpointRules,
    /// Start of the server's clock.
    pub origin: Origin,
    /// Id of this process, new with each start, never 0.
    pub server_id: u64,
    /// Tasks of streams; they end soon after `stop`.
    pub tasks: TaskTracker,
    /// Cancelled when the server stops: streams end, and new requests are refused.
    pub stop: CancellationToken,
}
