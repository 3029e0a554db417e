use super::RouterService;
use kvasir_access::Role;
use kvasir_process::access::Guard;
use kvasir_process::descriptors::{self, Shares};
use kvasir_process::port::{
    Port, PortConfig, PortMetrics, Roles, ServeError, Services, StreamKind, Streams,
};
use kvasir_proto::limits::GRPC_MESSAGE_BYTES_MAX;
use kvasir_proto::pb::FILE_DESCRIPTOR_SET;
use kvasir_proto::pb::router_server::RouterServer;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

/// Calls that stream messages.
const STREAMS: Streams = &[("/kvasir.v1.Router/WatchLoads", StreamKind::Watch)];
/// The role that each call requires.
const ROLES: Roles = &[
    ("/kvasir.v1.Router/SelectWorker", Role::Query),
    ("/kvasir.v1.Router/MarkPrefillCompleted", Role::Query),
    ("/kvasir.v1.Router/ReportOutput", Role::Query),
    ("/kvasir.v1.Router/Free", Role::Query),
    ("/kvasir.v1.Router/GetLoads", Role::Query),
    ("/kvasir.v1.Router/WatchLoads", Role::Query),
    ("/kvasir.v1.Router/GetBusyThresholds", Role::Query),
    ("/kvasir.v1.Router/SetBusyThresholds", Role::Admin),
];
/// Maximum concurrent unary calls. They include queued requests, so the limit is far higher than a queue's.
const CALLS_MAX: usize = 65_536;
/// Maximum calls of one connection, which may also have an eighth of all calls. So there is room for reports beside the
/// requests waiting in one queue, at most 4,096 by default. Clients of several busy models need one connection per
/// model.
const CONNECTION_CALLS_MAX: u32 = 16_384;
/// Maximum load streams on one connection.
const CONNECTION_READERS_MAX: usize = 8;
/// Maximum number of connections.
const CONNECTIONS_MAX: usize = 4_096;

/// Serves the port until `stop` is cancelled and active requests are answered.
///
/// # Errors
/// If the services cannot be built or the transport fails.
pub async fn serve(
    listener: TcpListener,
    guard: Guard,
    service: RouterService,
    metrics: PortMetrics,
    stop: CancellationToken,
) -> Result<(), ServeError> {
    let mut services = Services::default();
    let tasks = service.tasks();
    services.add(
        RouterServer::new(service)
            .max_decoding_message_size(GRPC_MESSAGE_BYTES_MAX)
            .max_encoding_message_size(GRPC_MESSAGE_BYTES_MAX),
    );
    let config = PortConfig {
        max_in_flight: CALLS_MAX,
        max_connections: CONNECTIONS_MAX.min(Shares::of(descriptors::limit()).clients),
        message_bytes_max: GRPC_MESSAGE_BYTES_MAX,
        connection_calls_max: CONNECTION_CALLS_MAX,
        connection_asking_streams_max: CONNECTION_READERS_MAX,
    };
    let port = Port {
        config,
        streams: STREAMS,
        roles: ROLES,
        metrics,
        descriptors: FILE_DESCRIPTOR_SET,
        guard,
    };
    port.serve(listener, services, stop).await?;
    tasks.close();
    tasks.wait().await;
    Ok(())
}
