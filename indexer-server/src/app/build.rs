use super::BuildError;
use super::agents::Agents;
use super::checkpoints::CheckpointParts;
use super::engines::FollowedList;
use super::map::MapFollower;
use super::siblings::Siblings;
use crate::broker::{Broker, LocalByBroker, ShardMaps};
use crate::config::{Config, ConfigError, MapSource};
use crate::grpc::{self, LocalClients, Parts};
use crate::ingest::{Ingest, IngestMetrics, RankStates};
use crate::partitions::{
    IndexMetrics, Origin, Partitions, Speculation, SpeculationMetrics, Writer, WriterThreads,
    start_writers,
};
use crate::query::{Finder, QueryMetrics};
use crate::snapshot::{Checkpoints, StoreError};
use kvasir_index::{ChangeLimits, Limits};
use kvasir_process::descriptors::{self, Shares};
use kvasir_process::port::PortMetrics;
use kvasir_process::telemetry::{Metrics, NotReady, Readiness, new_registry};
use kvasir_tls::LocalServer;
use prometheus_client::registry::Registry;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// The assembled process with open ports, not serving yet.
#[derive(Debug)]
pub struct App {
    pub(super) config: Config,
    pub(super) grpc_listener: Option<TcpListener>,
    pub(super) side_port: Option<SidePort>,
    grpc_address: Option<SocketAddr>,
    pub(super) parts: Parts,
    pub(super) grpc_metrics: PortMetrics,
    pub(super) readiness: Readiness,
    pub(super) starting: NotReady,
    pub(super) started: CancellationToken,
    pub(super) writer_threads: WriterThreads,
    pub(super) map_follower: Option<MapFollower>,
    pub(super) checkpoints: Option<CheckpointParts>,
    pub(super) broker: Option<Broker>,
    pub(super) siblings: Siblings,
    pub(super) engines: Option<FollowedList>,
}

/// The HTTP side port.
#[derive(Debug)]
pub(super) struct SidePort {
    pub(super) listener: TcpListener,
    pub(super) metrics: Metrics,
    pub(super) address: SocketAddr,
}

impl App {
    /// Opens the ports and wires the modules.
    ///
    /// # Errors
    /// If a port cannot be opened or a writer thread not started.
    pub async fn build(config: Config) -> Result<Self, BuildError> {
        let http = config.http.listen;
        let mut registry = new_registry();
        let app = Self::build_within(config, &mut registry).await?;
        let (listener, address) = bind("http-listen", http).await?;
        let side_port = SidePort { listener, metrics: Metrics::new(registry), address };
        Ok(Self { side_port: Some(side_port), ..app })
    }

    /// Like [`build`](Self::build), as a part of another program that shows the metrics and the readiness.
    ///
    /// # Errors
    /// See [`build`](Self::build).
    pub async fn build_within(config: Config, registry: &mut Registry) -> Result<Self, BuildError> {
        let (config, shares) = divide(config);
        let (grpc_listener, grpc_address) = bind_grpc(config.grpc.listen).await?;
        let (engines, readiness) = follow_list(&config)?;
        let broker = attach(&config, registry, &readiness).await?;
        let map_follower = follow_map(&config, broker.as_ref(), &readiness)?;
        let changes = config.checkpoints.as_ref().map(|_| ChangeLimits::default());
        let limits = Limits { changes, ..Limits::default() };
        let partitions = Arc::new(Partitions::new(config.index, limits));
        let index_metrics = IndexMetrics::register(registry, Arc::clone(&partitions));
        let query_metrics = QueryMetrics::register(registry);
        let grpc_metrics = PortMetrics::default();
        grpc_metrics.register(registry);
        let writing = start_writers(&partitions, &index_metrics);
        let (writer, writer_threads) = writing.map_err(BuildError::Writer)?;
        let origin = Origin::now();
        let speculation = Arc::new(Speculation::new(
            Arc::clone(&partitions),
            config.speculation,
            SpeculationMetrics::register(registry, Arc::clone(&partitions)),
        ));
        let ingest = Ingest::new(
            config.ingest.clone(),
            Arc::clone(&partitions),
            writer.clone(),
            Arc::clone(&speculation),
            origin,
            IngestMetrics::register(registry, index_metrics.clone()),
        );
        let agents = Arc::new(agents(&config, broker.as_ref()));
        let ingest = Arc::new(ingest.limited(shares.engines).asking(agents));
        registry.register_collector(Box::new(RankStates::new(Arc::clone(&ingest))));
        let written = (Arc::clone(&partitions), writer.clone());
        let kept = (broker.as_ref(), &mut *registry);
        let opened = open_checkpoints(&config, written, &ingest, kept).await?;
        let (checkpoint_parts, checkpoints) = opened.unzip();
        let siblings = siblings(&config, &writer, registry)?;
        let parts = Parts {
            checkpoints,
            finder: Finder::new(Arc::clone(&partitions), origin, query_metrics.clone()),
            partitions,
            query_metrics,
            ingest,
            speculation,
            writer,
            origin,
            endpoints: config.grpc.endpoints.clone(),
            server_id: RandomState::new().hash_one(0).max(1),
            tasks: TaskTracker::new(),
            stop: CancellationToken::new(),
        };
        Ok(Self {
            config,
            grpc_listener,
            side_port: None,
            grpc_address,
            parts,
            grpc_metrics,
            starting: readiness.hold("starting"),
            started: CancellationToken::new(),
            readiness,
            writer_threads,
            map_follower,
            checkpoints: checkpoint_parts,
            broker,
            siblings,
            engines,
        })
    }

    /// Address of the gRPC port.
    #[must_use]
    pub const fn grpc_address(&self) -> Option<SocketAddr> {
        self.grpc_address
    }

    /// Address of the HTTP side port.
    #[must_use]
    pub fn http_address(&self) -> Option<SocketAddr> {
        self.side_port.as_ref().map(|port| port.address)
    }

    /// The index, for callers in this process. They may call once it has [`started`](Self::started).
    #[must_use]
    pub fn local(&self) -> LocalServer {
        grpc::local(self.parts.clone())
    }

    /// Cancelled once the index accepts calls, and has registered the workers of its checkpoint.
    #[must_use]
    pub fn started(&self) -> CancellationToken {
        self.started.clone()
    }

    /// Readiness of the index.
    #[must_use]
    pub fn readiness(&self) -> Readiness {
        self.readiness.clone()
    }
}

fn siblings(
    config: &Config,
    writer: &Writer,
    registry: &mut Registry,
) -> Result<Siblings, BuildError> {
    Siblings::new(&config.siblings, &config.dialer, writer.clone(), registry)
}

/// Clients of the agents, over gRPC or over the broker.
fn agents(config: &Config, broker: Option<&Broker>) -> Agents {
    Agents {
        dialled: LocalClients(config.dialer.without_token()),
        broker: broker.map(|broker| LocalByBroker::new(broker.connection())),
    }
}

/// Divides the process' limit of open files into shares. Lowers `max_connections` of the gRPC port, with a warning, if
/// it exceeds the clients' share.
fn divide(mut config: Config) -> (Config, Shares) {
    let limit = descriptors::limit();
    let shares = Shares::of(limit);
    if config.grpc.port.max_connections > shares.clients {
        tracing::warn!(
            open_files = limit,
            wanted = config.grpc.port.max_connections,
            max_connections = shares.clients,
            "fewer connections are accepted: raise the limit of open files (ulimit -n)"
        );
        config.grpc.port.max_connections = shares.clients;
    }
    (config, shares)
}

/// Connects to the broker. Returns `None` if `nats-url` is unset.
async fn attach(
    config: &Config,
    registry: &mut Registry,
    readiness: &Readiness,
) -> Result<Option<Broker>, BuildError> {
    let Some(config) = config.broker.clone() else { return Ok(None) };
    let broker = Broker::attach(config, registry, readiness).await;
    broker.map(Some).map_err(BuildError::Broker)
}

/// Opens the store of checkpoints. Returns `None` if `checkpoint-dir` is unset.
async fn open_checkpoints(
    config: &Config,
    written: (Arc<Partitions>, Writer),
    ingest: &Arc<Ingest>,
    (broker, registry): (Option<&Broker>, &mut Registry),
) -> Result<Option<(CheckpointParts, Checkpoints)>, BuildError> {
    let Some(config) = &config.checkpoints else { return Ok(None) };
    let opened = CheckpointParts::open(config, written, ingest, registry, broker).await;
    let refused = |error: StoreError| ConfigError::invalid("checkpoint-dir", error.to_string());
    opened.map(Some).map_err(|error| BuildError::Config(refused(error)))
}

/// Creates the list of engines, if there is one, and the readiness, which shows the list's problems.
fn follow_list(config: &Config) -> Result<(Option<FollowedList>, Readiness), BuildError> {
    let (problems, shown) = watch::channel(Vec::new());
    let readiness = Readiness::with_problems(move || shown.borrow().clone());
    let list = config.engines_from.clone();
    let list = list.map(|source| FollowedList::new(source, problems)).transpose();
    Ok((list.map_err(BuildError::Signal)?, readiness))
}

/// Creates the follower of the shard map, from a file or from NATS. Returns `None` if the server has a fixed shard.
fn follow_map(
    config: &Config,
    broker: Option<&Broker>,
    readiness: &Readiness,
) -> Result<Option<MapFollower>, BuildError> {
    match (&config.shard_map, broker) {
        (Some(MapSource::File { path, warning }), _) => {
            if let Some(warning) = warning {
                tracing::warn!("{warning}");
            }
            MapFollower::of_file(path.clone()).map(Some).map_err(BuildError::Signal)
        }
        (Some(MapSource::Broker), Some(broker)) => {
            let not_ready = readiness.hold("waiting for the map of shards");
            let maps = ShardMaps::new(broker.connection());
            Ok(Some(MapFollower::Broker(Box::new(maps), Some(not_ready))))
        }
        (Some(MapSource::Broker) | None, _) => Ok(None),
    }
}

/// Opens the gRPC port, if it has an address.
async fn bind_grpc(
    address: Option<SocketAddr>,
) -> Result<(Option<TcpListener>, Option<SocketAddr>), BuildError> {
    let Some(address) = address else { return Ok((None, None)) };
    let (listener, bound) = bind("listen", address).await?;
    Ok((Some(listener), Some(bound)))
}

/// Opens the port of the option `option`, and returns its address.
async fn bind(
    option: &'static str,
    address: SocketAddr,
) -> Result<(TcpListener, SocketAddr), BuildError> {
    let refused = |error| BuildError::Bind { option, address, error };
    let listener = TcpListener::bind(address).await.map_err(refused)?;
    let bound = listener.local_addr().map_err(refused)?;
    Ok((listener, bound))
}
