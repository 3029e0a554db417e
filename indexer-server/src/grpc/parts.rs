use super::EndpointRules;
use crate::{
    ingest::Ingest,
    partitions::{Origin, Partitions, Speculation, Writer},
    query::{Finder, QueryMetrics},
    snapshot::Checkpoints,
};
use std::sync::Arc;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

/// The parts that the handlers use.
#[derive(Debug, Clone)]
pub struct Parts {
    /// All partitions.
    pub partitions: Arc<Partitions>,
    /// Answers queries.
    pub finder: Finder,
    /// Counters of the queries.
    pub query_metrics: QueryMetrics,
    /// The registry of workers.
    pub ingest: Arc<Ingest>,
    /// Changes of what is speculative.
    pub speculation: Arc<Speculation>,
    /// Changes of the index.
    pub writer: Writer,
    /// Requests checkpoints; none if the server writes none.
    pub checkpoints: Option<Checkpoints>,
    /// Where the endpoints of registrations may lie.
    pub endpoints: EndpointRules,
    /// Where time begins.
    pub origin: Origin,
    /// Id of this process, new with each start, never 0.
    pub server_id: u64,
    /// Tasks of streams; they end soon after `stop`.
    pub tasks: TaskTracker,
    /// Cancelled when the server is to stop: streams end, no request is taken any more.
    pub stop: CancellationToken,
}
