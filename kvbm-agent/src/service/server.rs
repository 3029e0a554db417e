use super::config::{
    ACCEPT_PAUSE, CONNECTION_STREAMS_MAX, KEEPALIVE_INTERVAL, KEEPALIVE_TIMEOUT, REQUEST_BYTES_MAX,
};
use super::loads::WorkerLoadsService;
use super::local::LocalIndexerService;
use crate::feed::Feed;
use crate::ingest::EventIngestService;
use futures::{Stream, stream};
use kvasir_process::net::CONNECTION_WINDOW_BYTES;
use kvasir_proto::convert::WorkerAddress;
use kvasir_proto::limits::GRPC_MESSAGE_BYTES_MAX;
use kvasir_proto::pb::FILE_DESCRIPTOR_SET;
use kvasir_proto::pb::event_ingest_server::EventIngestServer;
use kvasir_proto::pb::local_indexer_server::LocalIndexerServer;
use kvasir_proto::pb::worker_loads_server::WorkerLoadsServer;
use std::convert::Infallible;
use std::sync::Arc;
use tokio::net::{TcpListener, TcpStream};
use tokio::time::sleep;
use tonic::transport::Server;
use tonic_health::ServingStatus;

/// What an agent serves: the sources of one worker.
#[derive(Debug, Clone)]
pub struct Served {
    /// The worker.
    pub address: WorkerAddress,
    /// Its tokens per block.
    pub block_size: u32,
    /// Its sources, each name once.
    pub sources: Vec<Arc<Feed>>,
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

/// Serves a port until the service ends; `EventIngest` beside it, if there is one.
///
/// # Errors
/// If the services cannot be built or the transport fails.
pub async fn serve(
    listener: TcpListener,
    local: Arc<LocalIndexerService>,
    loads: Arc<WorkerLoadsService>,
    ingest: Option<Arc<EventIngestService>>,
) -> Result<(), ServeError> {
    let (reporter, health) = tonic_health::server::health_reporter();
    let publishes = ingest.as_ref().map(|_| "kvasir.v1.EventIngest");
    for service in
        ["", "kvasir.v1.LocalIndexer", "kvasir.v1.WorkerLoads"].into_iter().chain(publishes)
    {
        reporter.set_service_status(service, ServingStatus::Serving).await;
    }
    let reflection = || {
        tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(FILE_DESCRIPTOR_SET)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
    };
    let service = LocalIndexerServer::from_arc(Arc::clone(&local))
        .max_decoding_message_size(REQUEST_BYTES_MAX)
        .max_encoding_message_size(GRPC_MESSAGE_BYTES_MAX);
    let watched = WorkerLoadsServer::from_arc(Arc::clone(&loads))
        .max_decoding_message_size(REQUEST_BYTES_MAX)
        .max_encoding_message_size(GRPC_MESSAGE_BYTES_MAX);
    let ingest = ingest.map(|ingest| {
        EventIngestServer::from_arc(ingest)
            .max_decoding_message_size(GRPC_MESSAGE_BYTES_MAX)
            .max_encoding_message_size(GRPC_MESSAGE_BYTES_MAX)
    });
    Server::builder()
        .max_concurrent_streams(CONNECTION_STREAMS_MAX)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .http2_keepalive_interval(Some(KEEPALIVE_INTERVAL))
        .http2_keepalive_timeout(Some(KEEPALIVE_TIMEOUT))
        .add_service(service)
        .add_service(watched)
        .add_optional_service(ingest)
        .add_service(health.max_decoding_message_size(REQUEST_BYTES_MAX))
        .add_service(reflection().build_v1()?.max_decoding_message_size(REQUEST_BYTES_MAX))
        .add_service(reflection().build_v1alpha()?.max_decoding_message_size(REQUEST_BYTES_MAX))
        .serve_with_incoming_shutdown(incoming(listener), local.stop().cancelled())
        .await?;
    local.ended().await;
    loads.ended().await;
    Ok(())
}

/// The connections of a port. One that cannot be accepted, for want of descriptors say, ends nothing.
fn incoming(listener: TcpListener) -> impl Stream<Item = Result<TcpStream, Infallible>> {
    stream::unfold(listener, |listener| async {
        loop {
            match listener.accept().await.and_then(|(connection, _peer)| {
                connection.set_nodelay(true)?;
                Ok(connection)
            }) {
                Ok(connection) => return Some((Ok(connection), listener)),
                Err(error) => tracing::warn!(%error, "a connection is not accepted"),
            }
            sleep(ACCEPT_PAUSE).await;
        }
    })
}
