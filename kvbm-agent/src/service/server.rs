use super::config::REQUEST_BYTES_MAX;
use super::loads::WorkerLoadsService;
use super::local::LocalIndexerService;
use crate::blocks::Blocks;
use crate::ingest::EventIngestService;
use kvasir_access::Role;
use kvasir_process::access::Guard;
use kvasir_process::descriptors::{self, Shares};
use kvasir_process::net::SocketFile;
use kvasir_process::port::{
    CONNECTION_CALLS_MAX, Port, PortConfig, PortMetrics, Roles, ServeError, Services, StreamKind,
    Streams,
};
use kvasir_proto::limits::GRPC_MESSAGE_BYTES_MAX;
use kvasir_proto::pb::FILE_DESCRIPTOR_SET;
use kvasir_proto::pb::event_ingest_server::EventIngestServer;
use kvasir_proto::pb::local_indexer_server::LocalIndexerServer;
use kvasir_proto::pb::worker_loads_server::WorkerLoadsServer;
use std::sync::Arc;
use tokio::net::TcpListener;

/// Calls with a stream of messages in at least one direction.
const STREAMS: Streams = &[
    ("/kvasir.v1.LocalIndexer/GetEvents", StreamKind::Read),
    ("/kvasir.v1.LocalIndexer/Dump", StreamKind::Read),
    ("/kvasir.v1.LocalIndexer/GetDigests", StreamKind::Read),
    ("/kvasir.v1.WorkerLoads/WatchLoads", StreamKind::Watch),
    ("/kvasir.v1.EventIngest/PublishEvents", StreamKind::Publish),
    ("/kvasir.v1.BlockManager/OpenSession", StreamKind::Hold),
    ("/kvasir.v1.BlockManager/Read", StreamKind::Read),
];
/// Required role of each call.
const ROLES: Roles = &[
    ("/kvasir.v1.LocalIndexer/GetEvents", Role::Query),
    ("/kvasir.v1.LocalIndexer/Dump", Role::Query),
    ("/kvasir.v1.LocalIndexer/GetDigests", Role::Query),
    ("/kvasir.v1.LocalIndexer/GetStatus", Role::Query),
    ("/kvasir.v1.WorkerLoads/ReportLoad", Role::Publish),
    ("/kvasir.v1.WorkerLoads/WatchLoads", Role::Query),
    ("/kvasir.v1.EventIngest/PublishEvents", Role::Publish),
    ("/kvasir.v1.BlockManager/OpenSession", Role::Publish),
    ("/kvasir.v1.BlockManager/EndSession", Role::Publish),
    ("/kvasir.v1.BlockManager/Allocate", Role::Publish),
    ("/kvasir.v1.BlockManager/Write", Role::Publish),
    ("/kvasir.v1.BlockManager/Commit", Role::Publish),
    ("/kvasir.v1.BlockManager/Abort", Role::Publish),
    ("/kvasir.v1.BlockManager/MatchPrefix", Role::Publish),
    ("/kvasir.v1.BlockManager/Onboard", Role::Publish),
    ("/kvasir.v1.BlockManager/Fetch", Role::Publish),
    ("/kvasir.v1.BlockManager/Offload", Role::Publish),
    ("/kvasir.v1.BlockManager/Read", Role::Publish),
    ("/kvasir.v1.BlockManager/Verify", Role::Publish),
    ("/kvasir.v1.BlockManager/Release", Role::Publish),
    ("/kvasir.v1.BlockManager/Pin", Role::Publish),
    ("/kvasir.v1.BlockManager/Unpin", Role::Publish),
    ("/kvasir.v1.BlockManager/GetStats", Role::Publish),
];
/// Maximum number of concurrent unary calls.
const CALLS_MAX: usize = 1_024;
/// Maximum number of concurrent read streams on one connection: ranges, dumps, loads and blocks. An index needs two, a
/// router one.
const CONNECTION_READERS_MAX: usize = 8;
/// Maximum number of connections. Each replica of an index and each router has one or two.
const CONNECTIONS_MAX: usize = 1_024;

/// Services on an agent's port.
#[derive(Debug, Clone)]
pub struct Offered {
    /// `LocalIndexer`: ranges and dumps.
    pub local: Arc<LocalIndexerService>,
    /// `WorkerLoads`: loads of the ranks.
    pub loads: Arc<WorkerLoadsService>,
    /// `EventIngest`: events of engines; `None` if it is off.
    pub ingest: Option<Arc<EventIngestService>>,
    /// `BlockManager`: blocks of engines; `None` without a block manager.
    pub blocks: Option<Arc<Blocks>>,
}

/// Serves a port until the service ends.
///
/// # Errors
/// If the services cannot be built or the transport fails.
pub async fn serve(
    listener: TcpListener,
    guard: Guard,
    Offered { local, loads, ingest, blocks }: Offered,
    metrics: PortMetrics,
) -> Result<(), ServeError> {
    let mut services = Services::default();
    services.add(
        LocalIndexerServer::from_arc(Arc::clone(&local))
            .max_decoding_message_size(REQUEST_BYTES_MAX)
            .max_encoding_message_size(GRPC_MESSAGE_BYTES_MAX),
    );
    services.add(
        WorkerLoadsServer::from_arc(Arc::clone(&loads))
            .max_decoding_message_size(REQUEST_BYTES_MAX)
            .max_encoding_message_size(GRPC_MESSAGE_BYTES_MAX),
    );
    if let Some(ingest) = ingest {
        services.add(
            EventIngestServer::from_arc(ingest)
                .max_decoding_message_size(GRPC_MESSAGE_BYTES_MAX)
                .max_encoding_message_size(GRPC_MESSAGE_BYTES_MAX),
        );
    }
    if let Some(blocks) = blocks {
        blocks.add_to(&mut services);
    }
    port(guard, metrics).serve(listener, services, local.stop().clone()).await?;
    local.ended().await;
    loads.ended().await;
    Ok(())
}

/// Serves the block manager on a socket file, for processes of the same user. They need no identity.
///
/// # Errors
/// As [`serve`].
pub async fn serve_socket(
    socket: SocketFile,
    blocks: Arc<Blocks>,
    metrics: PortMetrics,
) -> Result<(), ServeError> {
    let mut services = Services::default();
    blocks.add_to(&mut services);
    port(Guard::default(), metrics).serve(socket, services, blocks.stop_calls().clone()).await
}

/// Builds the limits and roles of the agent's gRPC port.
fn port(guard: Guard, metrics: PortMetrics) -> Port {
    let config = PortConfig {
        max_in_flight: CALLS_MAX,
        max_connections: CONNECTIONS_MAX.min(Shares::of(descriptors::limit()).clients),
        message_bytes_max: GRPC_MESSAGE_BYTES_MAX,
        connection_calls_max: CONNECTION_CALLS_MAX,
        connection_asking_streams_max: CONNECTION_READERS_MAX,
    };
    Port {
        config,
        streams: STREAMS,
        roles: ROLES,
        metrics,
        descriptors: FILE_DESCRIPTOR_SET,
        guard,
    }
}
