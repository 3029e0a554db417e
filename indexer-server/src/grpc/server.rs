use super::{GrpcConfig, find::FindService, indexer::IndexerService, ingest::EventIngestService};
use crate::{
    index::{Origin, Partitions, Speculation, Writer},
    ingest::Ingest,
    query::{Finder, QueryMetrics},
    snapshot::Checkpoints,
};
use kvasir_process::port::{Port, PortMetrics, ServeError, Services, StreamKind, Streams};
use kvasir_proto::{
    limits::GRPC_MESSAGE_BYTES_MAX,
    pb::{
        FILE_DESCRIPTOR_SET, event_ingest_server::EventIngestServer, indexer_server::IndexerServer,
    },
};
use std::sync::Arc;
use tokio::net::TcpListener;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

/// Calls with more than one message in a direction.
const STREAMS: Streams = &[
    ("/kvasir.v1.Indexer/FindMatchesStream", StreamKind::Query),
    ("/kvasir.v1.Indexer/DumpWorker", StreamKind::Read),
    ("/kvasir.v1.EventIngest/PublishEvents", StreamKind::Publish),
];

/// What the handlers work with.
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
    /// Asks for checkpoints; none if the server keeps none.
    pub checkpoints: Option<Checkpoints>,
    /// Where time begins.
    pub origin: Origin,
    /// Tasks of streams; they end soon after `stop`.
    pub tasks: TaskTracker,
    /// Cancelled when the server is to stop: streams end, no request is taken any more.
    pub stop: CancellationToken,
}

/// Serves the port until `parts.stop` is cancelled and the requests under way are answered.
///
/// # Errors
/// If the services cannot be built or the transport fails.
pub async fn serve(
    listener: TcpListener,
    config: &GrpcConfig,
    parts: Parts,
    metrics: PortMetrics,
) -> Result<(), ServeError> {
    let (tasks, stop) = (parts.tasks.clone(), parts.stop.clone());
    let (finder, until) = (parts.finder.clone(), stop.clone());
    let indexer = IndexerServer::new(IndexerService::new(parts.clone()))
        .max_decoding_message_size(GRPC_MESSAGE_BYTES_MAX)
        .max_encoding_message_size(GRPC_MESSAGE_BYTES_MAX);
    let ingest = EventIngestServer::new(EventIngestService { parts })
        .max_decoding_message_size(GRPC_MESSAGE_BYTES_MAX)
        .max_encoding_message_size(GRPC_MESSAGE_BYTES_MAX);
    let mut services = Services::default();
    services.add(FindService::new(finder, until, indexer));
    services.add(ingest);
    let config = config.port;
    let port = Port { config, streams: STREAMS, metrics, descriptors: FILE_DESCRIPTOR_SET };
    port.serve(listener, services, stop).await?;
    tasks.close();
    tasks.wait().await;
    Ok(())
}
