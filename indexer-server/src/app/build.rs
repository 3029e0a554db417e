use super::map::MapFollower;
use crate::{
    config::Config,
    grpc::{GrpcMetrics, LocalClients, Parts},
    index::{
        IndexMetrics, Origin, Partitions, Speculation, SpeculationMetrics, Writer, WriterThreads,
        start_writers,
    },
    ingest::{Ingest, IngestMetrics},
    query::{Finder, QueryMetrics},
    snapshot::{
        CheckpointConfig, CheckpointMetrics, Checkpointer, Checkpoints, Keeper, Restorer, Roster,
        SnapshotConfig, StoreError,
    },
    telemetry::{Metrics, NotReady, Readiness, new_registry},
};
use kvasir_index::{ChangeLimits, Limits};
use kvasir_proto::convert::WorkerAddress;
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
    /// The folder of the checkpoints cannot be used.
    #[error("checkpoint-dir: {0}")]
    Store(#[source] StoreError),
    /// SIGHUP cannot be listened to.
    #[error("SIGHUP: {0}")]
    Signal(#[source] io::Error),
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
    pub(super) map_follower: Option<MapFollower>,
    pub(super) checkpoints: Option<Kept>,
}

/// What is needed to write checkpoints, and to restore the one that is there.
#[derive(Debug)]
pub(super) struct Kept {
    pub(super) restorer: Restorer,
    /// Workers on disk, with their registrations.
    pub(super) stored: Vec<(WorkerAddress, Vec<u8>)>,
    pub(super) checkpointer: Checkpointer,
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
        let map_follower = config.shard_map.clone().map(MapFollower::new).transpose();
        let map_follower = map_follower.map_err(BuildError::Signal)?;
        let readiness = Readiness::default();
        let mut registry = new_registry();
        let changes = config.checkpoints.as_ref().map(|_| ChangeLimits::default());
        let limits = Limits { changes, ..Limits::default() };
        let partitions = Arc::new(Partitions::new(config.index, limits));
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
        let ingest = Arc::new(ingest.asking(Arc::new(LocalClients)));
        let written = (Arc::clone(&partitions), writer.clone());
        let (kept, checkpoints) = match &config.checkpoints {
            Some(checkpoints) => {
                let metrics = CheckpointMetrics::register(&mut registry);
                let kept = keep(checkpoints, written, Arc::clone(&ingest), metrics).await;
                kept.map(|(kept, checkpoints)| (Some(kept), Some(checkpoints)))?
            }
            None => (None, None),
        };
        let parts = Parts {
            checkpoints,
            finder: Finder::new(Arc::clone(&partitions), origin, query_metrics.clone()),
            partitions,
            query_metrics,
            ingest,
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
            starting: readiness.hold("starting"),
            readiness,
            writer_threads,
            map_follower,
            checkpoints: kept,
        })
    }

    /// Addresses of the open ports.
    #[must_use]
    pub const fn addresses(&self) -> Addresses {
        self.addresses
    }
}

/// Opens the store of the checkpoints.
async fn keep(
    config: &CheckpointConfig,
    (partitions, writer): (Arc<Partitions>, Writer),
    ingest: Arc<Ingest>,
    metrics: CheckpointMetrics,
) -> Result<(Kept, Checkpoints), BuildError> {
    let shard = ingest.shard().map(|shard| shard.place);
    let store = SnapshotConfig { shard, ..SnapshotConfig::new(config.folder.clone()) };
    let keeper = Keeper::open(store).await;
    let keeper = keeper.map_err(BuildError::Store)?;
    let restorer = Restorer::new(keeper.clone(), writer.clone());
    let stored = restorer.registrations().await.unwrap_or_else(|error| {
        tracing::error!(%error, "nothing is restored");
        Vec::new()
    });
    let registry = Arc::new(move || {
        let (present, expected) = ingest.restored();
        Roster { present, expected }
    });
    let (checkpointer, checkpoints) = Checkpointer::new(
        keeper,
        (partitions, writer),
        registry,
        config.interval,
        metrics,
        stored.iter().map(|(address, _)| address.clone()),
    );
    Ok((Kept { restorer, stored, checkpointer }, checkpoints))
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
