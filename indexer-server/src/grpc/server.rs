use super::find::FindService;
use super::indexer::IndexerService;
use super::ingest::EventIngestService;
use super::{GrpcConfig, Parts};
use kvasir_access::Role;
use kvasir_process::port::{Port, PortMetrics, Roles, ServeError, Services, StreamKind, Streams};
use kvasir_proto::limits::GRPC_MESSAGE_BYTES_MAX;
use kvasir_proto::pb::FILE_DESCRIPTOR_SET;
use kvasir_proto::pb::event_ingest_server::EventIngestServer;
use kvasir_proto::pb::indexer_server::IndexerServer;
use kvasir_tls::LocalServer;
use tokio::net::TcpListener;

/// Calls with several messages in one direction.
const STREAMS: Streams = &[
    ("/kvasir.v1.Indexer/FindMatchesStream", StreamKind::Query),
    ("/kvasir.v1.Indexer/DumpWorker", StreamKind::Read),
    ("/kvasir.v1.EventIngest/PublishEvents", StreamKind::Publish),
    ("/kvasir.v1.Indexer/CreateCheckpoint", StreamKind::Work),
];

/// The role that each call requires.
const ROLES: Roles = &[
    ("/kvasir.v1.Indexer/FindMatches", Role::Query),
    ("/kvasir.v1.Indexer/FindMatchesStream", Role::Query),
    ("/kvasir.v1.Indexer/DumpWorker", Role::Query),
    ("/kvasir.v1.Indexer/ListWorkers", Role::Query),
    ("/kvasir.v1.Indexer/RegisterWorker", Role::Publish),
    ("/kvasir.v1.Indexer/RemoveWorker", Role::Publish),
    ("/kvasir.v1.Indexer/RecordPlacement", Role::Query),
    ("/kvasir.v1.Indexer/ReportReuse", Role::Publish),
    ("/kvasir.v1.Indexer/CreateCheckpoint", Role::Admin),
    ("/kvasir.v1.Indexer/GetStats", Role::Query),
    ("/kvasir.v1.EventIngest/PublishEvents", Role::Publish),
];

/// Serves the port until `parts.stop` is cancelled and the running requests are answered. Without a listener, only waits
/// for the requests of this process ([`local`]).
///
/// # Errors
/// If the services cannot be built or the transport fails.
pub async fn serve(
    listener: Option<TcpListener>,
    config: &GrpcConfig,
    parts: Parts,
    metrics: PortMetrics,
) -> Result<(), ServeError> {
    let tasks = parts.tasks.clone();
    let stop = parts.stop.clone();
    if let Some(listener) = listener {
        let port = Port {
            config: config.port,
            streams: STREAMS,
            roles: ROLES,
            metrics,
            descriptors: FILE_DESCRIPTOR_SET,
            guard: config.guard.clone(),
        };
        port.serve(listener, services(parts), stop).await?;
    } else {
        stop.cancelled().await;
    }
    tasks.close();
    tasks.wait().await;
    Ok(())
}

/// The calls of the port, for callers in this process.
pub fn local(parts: Parts) -> LocalServer {
    services(parts).local()
}

fn services(parts: Parts) -> Services {
    let finder = parts.finder.clone();
    let until = parts.stop.clone();
    let indexer = IndexerServer::new(IndexerService::new(parts.clone()))
        .max_decoding_message_size(GRPC_MESSAGE_BYTES_MAX)
        .max_encoding_message_size(GRPC_MESSAGE_BYTES_MAX);
    let ingest = EventIngestServer::new(EventIngestService::new(parts))
        .max_decoding_message_size(GRPC_MESSAGE_BYTES_MAX)
        .max_encoding_message_size(GRPC_MESSAGE_BYTES_MAX);
    let mut services = Services::default();
    services.add(FindService::new(finder, until, indexer));
    services.add(ingest);
    services
}
