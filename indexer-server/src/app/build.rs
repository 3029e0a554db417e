use crate::{
    config::Config,
    grpc::{GrpcMetrics, LocalClients, Parts},
    index::{
        IndexMetrics, Origin, Partitions, Speculation, SpeculationMetrics, WriterThreads,
        start_writers,
    },
    ingest::{Ingest, IngestMetrics},
    query::{Finder, QueryMetrics},
    telemetry::{Metrics, NotReady, Readiness, new_registry},
};
use kvasir_index::Limits;
use std::{io, net::SocketAddr, sync::Arc};
use tokio::net::TcpListener;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

/// Why the process cannot be built.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    /// A port cannot be opened.
    #[error("cannot listen on {address}: {error}; choose another address with --{option}")]
    Bind {
        /// Option that names the address.
        option: &'static str,
        /// The address.
        address: SocketAddr,
        /// Why.
        error: io::Error,
    },
    /// A writer thread cannot be started.
    #[error("writer thread: {0}")]
    Writer(#[source] io::Error),
}

/// The process, wired and with its ports open, serving nothing yet.
#[derive(Debug)]
pub struct App {
    pub(super) config: Config,
    pub(super) grpc_listener: TcpListener,
    pub(super) http_listener: TcpListener,
    pub(super) addresses: Addresses,
    pub(super) parts: Parts,
    pub(super) grpc_metrics: GrpcMetrics,
    pub(super) metrics: Metrics,
    pub(super) readiness: Readiness,
    pub(super) starting: NotReady,
    pub(super) writer_threads: WriterThreads,
}

/// Addresses of the open ports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Addresses {
    /// The gRPC port.
    pub grpc: SocketAddr,
    /// The HTTP side port.
    pub http: SocketAddr,
}

impl App {
    /// Opens the ports and wires the modules.
    ///
    /// # Errors
    /// If a port cannot be opened or a writer thread not started.
    pub async fn build(config: Config) -> Result<Self, BuildError> {
        let (grpc_listener, grpc) = bind("listen", config.grpc.listen).await?;
        let (http_listener, http) = bind("http-listen", config.http.listen).await?;
        let readiness = Readiness::default();
        let mut registry = new_registry();
        let partitions = Arc::new(Partitions::new(config.index, Limits::default()));
        let index_metrics = IndexMetrics::register(&mut registry, Arc::clone(&partitions));
        let speculation_metrics =
            SpeculationMetrics::register(&mut registry, Arc::clone(&partitions));
        let ingest_metrics = IngestMetrics::register(&mut registry, index_metrics.clone());
        let query_metrics = QueryMetrics::register(&mut registry);
        let grpc_metrics = GrpcMetrics::register(&mut registry);
        let (writer, writer_threads) =
            start_writers(&partitions, &index_metrics).map_err(BuildError::Writer)?;
        let origin = Origin::now();
        let speculation =
            Speculation::new(Arc::clone(&partitions), config.speculation, speculation_metrics);
        let speculation = Arc::new(speculation);
        let ingest = Ingest::new(
            config.ingest.clone(),
            Arc::clone(&partitions),
            writer.clone(),
            Arc::clone(&speculation),
            origin,
            ingest_metrics,
        );
        let ingest = ingest.asking(Arc::new(LocalClients));
        let parts = Parts {
            finder: Finder::new(Arc::clone(&partitions), origin, query_metrics.clone()),
            partitions,
            query_metrics,
            ingest: Arc::new(ingest),
            speculation,
            writer,
            origin,
            tasks: TaskTracker::new(),
            stop: CancellationToken::new(),
        };
        Ok(Self {
            config,
            grpc_listener,
            http_listener,
            addresses: Addresses { grpc, http },
            parts,
            grpc_metrics,
            metrics: Metrics::new(registry),
            starting: readiness.hold(),
            readiness,
            writer_threads,
        })
    }

    /// Addresses of the open ports.
    #[must_use]
    pub const fn addresses(&self) -> Addresses {
        self.addresses
    }
}

async fn bind(
    option: &'static str,
    address: SocketAddr,
) -> Result<(TcpListener, SocketAddr), BuildError> {
    let refused = |error| BuildError::Bind { option, address, error };
    let listener = TcpListener::bind(address).await.map_err(refused)?;
    let bound = listener.local_addr().map_err(refused)?;
    Ok((listener, bound))
}
