use super::{
    GrpcConfig, GrpcMetrics,
    config::{
        CONNECTION_CALLS_MAX, CONNECTION_MESSAGE_BYTES_MAX, CONNECTION_PART, KEEPALIVE_INTERVAL,
        KEEPALIVE_TIMEOUT, LARGE_ANSWER_BYTES_MAX, PATIENCE, REQUEST_TIMEOUT,
        SIDE_MESSAGE_BYTES_MAX, SMALL_ANSWER_BYTES_MAX, STREAMS_MAX,
    },
    find::FindService,
    indexer::IndexerService,
    ingest::EventIngestService,
    limit::RequestLimit,
    too_long::CountTooLong,
};
use crate::{
    index::{Origin, Partitions, Speculation, Writer},
    ingest::Ingest,
    query::{Finder, QueryMetrics},
    snapshot::Checkpoints,
};
use kvasir_process::net::{
    CONNECTION_WINDOW_BYTES, ConnectionLimits, LimitedListener, PeerLimits, incoming,
};
use kvasir_proto::{
    limits::GRPC_MESSAGE_BYTES_MAX,
    pb::{
        FILE_DESCRIPTOR_SET, event_ingest_server::EventIngestServer, indexer_server::IndexerServer,
    },
};
use std::sync::Arc;
use tokio::net::TcpListener;
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tonic::{codegen::http, transport::Server};
use tonic_health::{ServingStatus, server::HealthReporter};

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

/// Why the port cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The reflection service cannot be built: a fault of the build.
    #[error("reflection: {0}")]
    Reflection(#[from] tonic_reflection::server::Error),
    /// The transport failed.
    #[error("gRPC: {0}")]
    Transport(#[from] tonic::transport::Error),
}

/// Serves the port until `parts.stop` is cancelled and the requests under way are answered.
///
/// # Errors
/// If the services cannot be built or the transport fails.
pub async fn serve(
    listener: TcpListener,
    config: &GrpcConfig,
    parts: Parts,
    metrics: GrpcMetrics,
) -> Result<(), ServeError> {
    let listener = LimitedListener::new(listener, limits(config), metrics.connections.clone());
    let (reporter, health) = tonic_health::server::health_reporter();
    set_health(&reporter, ServingStatus::Serving).await;
    let (tasks, stop) = (parts.tasks.clone(), parts.stop.clone());
    let (finder, until) = (parts.finder.clone(), stop.clone());
    let indexer = IndexerServer::new(IndexerService::new(parts.clone()))
        .max_decoding_message_size(GRPC_MESSAGE_BYTES_MAX)
        .max_encoding_message_size(GRPC_MESSAGE_BYTES_MAX);
    let indexer = FindService::new(finder, until, indexer);
    let ingest = EventIngestServer::new(EventIngestService { parts })
        .max_decoding_message_size(GRPC_MESSAGE_BYTES_MAX)
        .max_encoding_message_size(GRPC_MESSAGE_BYTES_MAX);
    let reflection = || {
        tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(FILE_DESCRIPTOR_SET)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
    };
    let mut server = Server::builder()
        .max_concurrent_streams(CONNECTION_CALLS_MAX)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .http2_keepalive_interval(Some(KEEPALIVE_INTERVAL))
        .http2_keepalive_timeout(Some(KEEPALIVE_TIMEOUT))
        .timeout(REQUEST_TIMEOUT);
    if config.spans {
        server = server.trace_fn(request_span);
    }
    server
        .layer(CountTooLong(metrics.too_long.clone()))
        .layer(RequestLimit::new(config.max_in_flight, metrics))
        .add_service(indexer)
        .add_service(ingest)
        .add_service(health.max_decoding_message_size(SIDE_MESSAGE_BYTES_MAX))
        .add_service(reflection().build_v1()?.max_decoding_message_size(SIDE_MESSAGE_BYTES_MAX))
        .add_service(
            reflection().build_v1alpha()?.max_decoding_message_size(SIDE_MESSAGE_BYTES_MAX),
        )
        .serve_with_incoming_shutdown(incoming(listener), async move {
            stop.cancelled().await;
            set_health(&reporter, ServingStatus::NotServing).await;
        })
        .await?;
    tasks.close();
    tasks.wait().await;
    Ok(())
}

fn limits(config: &GrpcConfig) -> ConnectionLimits {
    let part = |all: usize| all.div_ceil(CONNECTION_PART);
    ConnectionLimits {
        connections: config.max_connections,
        patience: PATIENCE,
        peer: PeerLimits {
            calls: part(config.max_in_flight),
            streams: part(STREAMS_MAX),
            message_bytes: CONNECTION_MESSAGE_BYTES_MAX,
            large_answer_bytes: part(LARGE_ANSWER_BYTES_MAX),
            small_answer_bytes: part(SMALL_ANSWER_BYTES_MAX),
        },
    }
}

async fn set_health(reporter: &HealthReporter, status: ServingStatus) {
    for service in ["", "kvasir.v1.Indexer", "kvasir.v1.EventIngest"] {
        reporter.set_service_status(service, status).await;
    }
}

fn request_span(request: &http::Request<()>) -> tracing::Span {
    tracing::info_span!("request", path = request.uri().path())
}
