//! Agent of one worker. It journals an engine's events from [`Agent::publish`] and sends them to every indexer: over
//! gRPC, over NATS, or over ZMQ as an engine would. Indexers fetch missed events from the agent's `LocalIndexer`.

mod broker;
mod disk;
mod error;
mod loads;
mod pool;
mod port;
mod sources;
mod zmq;

pub use error::AgentError;
pub use pool::PoolUplink;
pub use sources::SourcesConfig;

use crate::blocks::{Blocks, BlocksConfig};
use crate::broker::{BrokerConfig, BrokerStatus};
use crate::ingest::Refusals;
use crate::load::scrape::ScrapeStatus;
use crate::load::{LoadConfig, WorkerMetricsPublisher};
use crate::service::{LocalIndexerService, Offered, Served, ServiceConfig};
use crate::zmq::{ZmqConfig, ZmqEndpoints, ZmqStatus};
use kvasir_feed::disk::{Disk, DiskStatus};
use kvasir_feed::feed::{Feed, SourceConfig, write_images};
use kvasir_feed::hub::Hub;
use kvasir_feed::journal::{AppendError, JournalStatus};
use kvasir_feed::uplink::{Overrun, UplinkConfig, UplinkStatus, run_uplink};
use kvasir_process::access::Guard;
use kvasir_process::net::SocketFile;
use kvasir_process::port::PortMetrics;
use kvasir_proto::convert::{Registration, WorkerAddress};
use kvasir_proto::types::{DpRank, Incarnation, KvEvent, WorkerId};
use kvasir_tasks::group::TaskGroup;
use kvasir_tasks::tasks::Ended;
use kvasir_tls::{DialError, Dialer};
use pool::Pools;
use port::serve_local;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use zmq::Zmq;

/// Maximum number of indexers that one agent feeds: the replicas of its shard.
pub const INDEXERS_MAX: usize = 16;
/// Maximum number of indexers of other shards.
pub const POOL_INDEXERS_MAX: usize = 256;
/// Default time between two heartbeats to indexers, short enough for leases of 15 s and more.
pub const HEARTBEAT_INTERVAL_DEFAULT: Duration = Duration::from_secs(5);
/// Minimum time between two heartbeats.
const HEARTBEAT_INTERVAL_MIN: Duration = Duration::from_millis(10);

/// Name of the only task that may end before the agent does: without a usable disk, there are no images.
const IMAGE: &str = "image";

/// Configuration of an agent.
#[derive(Debug, Clone)]
pub struct AgentConfig {
    /// Identity of the agent's stream, and limits of its journal.
    pub source: SourceConfig,
    /// Folder of the journal on disk, so that a restarted agent continues if its engine survived; `None` for memory
    /// only.
    pub journal_dir: Option<PathBuf>,
    /// Sources of the agent's events.
    pub sources: SourcesConfig,
    /// Block manager; `None` to run without one.
    pub blocks: Option<BlocksConfig>,
    /// Indexers to feed (`host:port`, `http://host:port` or `https://host:port`), at most [`INDEXERS_MAX`].
    pub indexers: Vec<String>,
    /// Pool of the store that engines announce as shared with other workers; `None` to leave it out.
    pub engine_pool: Option<WorkerId>,
    /// Indexers of other shards, at most [`POOL_INDEXERS_MAX`]. The contents of pools are published to them, too,
    /// because workers of all shards read pools.
    pub pool_indexers: Vec<String>,
    /// Dialer that connects to indexers.
    pub dialer: Dialer,
    /// NATS servers to publish and answer over, besides or instead of indexers.
    pub broker: Option<BrokerConfig>,
    /// ZMQ sockets that publish like an engine, for consumers that expect one; `None` for no sockets.
    pub zmq: Option<ZmqConfig>,
    /// How the loads of the worker's ranks are read and published.
    pub loads: LoadConfig,
    /// Registration of the worker at indexers; `None` if it is registered elsewhere. If the registration has no address
    /// of `LocalIndexer`, it gets the agent's own.
    pub registration: Option<Registration>,
    /// Whether the worker is removed from indexers when the agent is stopped.
    pub deregister: bool,
    /// Time between two heartbeats to indexers, at least 10 ms. Choose at most a third of the worker's lease, if it has
    /// one.
    pub heartbeat_interval: Duration,
    /// Address on which to serve `LocalIndexer` and `WorkerLoads`; `None` for no port. Port 0 is any free port.
    pub listen: Option<SocketAddr>,
    /// TLS and access control of the port at `listen`.
    pub guard: Guard,
    /// Limits of the services on the port at `listen`.
    pub service: ServiceConfig,
}

/// A running agent. If dropped without [`stop`](Self::stop), it ends immediately and delivers nothing more.
#[derive(Debug)]
pub struct Agent {
    feed: Arc<Feed>,
    hub: Arc<Hub>,
    metrics: WorkerMetricsPublisher,
    scraped: Option<watch::Receiver<ScrapeStatus>>,
    refusals: Option<Arc<Refusals>>,
    blocks: Option<Arc<Blocks>>,
    local: Option<SocketAddr>,
    port_metrics: PortMetrics,
    uplinks: Vec<watch::Receiver<UplinkStatus>>,
    pools: Pools,
    pool_uplinks: Vec<PoolUplink>,
    broker: Option<watch::Receiver<BrokerStatus>>,
    zmq: Option<Zmq>,
    source_tasks: TaskGroup,
    uplink_tasks: TaskGroup,
    service_tasks: TaskGroup,
}

impl Agent {
    /// Starts an agent: block manager, journal, sources, uplinks and ports. Its indexers need not be reachable yet.
    ///
    /// # Errors
    /// If the source breaks the contract, too many indexers are given, or the port cannot be opened.
    #[expect(clippy::too_many_lines, reason = "it puts all parts together, one after the other")]
    pub async fn start(config: AgentConfig) -> Result<Self, AgentError> {
        check(&config)?;
        let has_tls = config.guard.tls.is_some();
        let indexers = targets(&config.indexers, &config.dialer)?;
        let pool_indexers = targets(&config.pool_indexers, &config.dialer)?;
        let volume = pool::pool_of(config.blocks.as_ref())?;
        let lora_names = config.registration.as_ref().map(|at| at.lora_names.clone());
        let lora_names = lora_names.unwrap_or_default();
        let (blocks, socket) = start_blocks(config.blocks, &config.source.address).await?;
        let source = config.source;
        let journal_dir = config.journal_dir;
        let is_consolidated = config.sources.hub.consolidate;
        let opening = disk::open_feed(
            source.clone(),
            journal_dir.clone(),
            lora_names.clone(),
            is_consolidated,
        );
        let (feed, found) = opening.await?;
        let journal_dir = journal_dir.as_deref();
        let opening = Pools::open(volume, config.engine_pool, &source, journal_dir, lora_names);
        let pools = opening.await?;
        let feed = Arc::new(feed);
        let heartbeat_interval = config.heartbeat_interval.max(HEARTBEAT_INTERVAL_MIN);
        let mut source_tasks = TaskGroup::default();
        let mut uplink_tasks = TaskGroup::default();
        let mut service_tasks = TaskGroup::default();
        let loads = loads::start(&feed, &config.loads, &mut source_tasks)?;
        let tasks = &mut source_tasks;
        let sources = sources::start(&feed, found, config.sources, blocks.as_ref(), &pools, tasks)?;
        // Images stop last, once the sources' events are on disk.
        for feed in [&feed].into_iter().chain(&pools.engine) {
            service_tasks.spawn(IMAGE, write_images(Arc::clone(feed), service_tasks.token()));
        }
        let service = local_indexer(&feed, config.service, service_tasks.token());
        let context = broker::Context {
            feed: &feed,
            board: &loads.board,
            service: &service,
            blocks: blocks.as_ref(),
            heartbeat_interval,
            loads_interval: config.loads.min_interval,
        };
        let broker = config
            .broker
            .map(|broker| broker::start(&context, broker, &mut uplink_tasks, &mut service_tasks));
        let broker = broker.transpose()?;
        let zmq = Zmq::start(&feed, config.zmq, &mut uplink_tasks, &mut service_tasks).await?;
        let stop = service_tasks.token();
        let loads_of = loads.service(&feed, config.service, heartbeat_interval, stop);
        let ingest = sources.ingest;
        let offered = Offered { local: service, loads: loads_of, ingest, blocks: blocks.clone() };
        let serving = serve_local(config.listen, config.guard, offered, socket, &mut service_tasks);
        let (local, port_metrics) = serving.await?;
        let registration = reachable(config.registration, local, has_tls);
        let uplink = |endpoint| {
            let registration = registration.clone();
            let deregister = config.deregister;
            let dialer = config.dialer.clone();
            let overrun = Overrun::Skip;
            UplinkConfig { endpoint, dialer, heartbeat_interval, registration, deregister, overrun }
        };
        let everywhere: Vec<_> = indexers.iter().chain(&pool_indexers).collect();
        let start = |feed: &_, uplink| start_uplink(feed, uplink, &mut uplink_tasks);
        let pool_uplinks =
            pools.start_uplinks(&config.dialer, heartbeat_interval, &everywhere, start)?;
        let start = |uplink| start_uplink(&feed, uplink, &mut uplink_tasks);
        let uplinks = indexers.into_iter().map(uplink).map(start).collect();
        Ok(Self {
            feed,
            hub: sources.hub,
            metrics: WorkerMetricsPublisher::new(loads.board),
            scraped: loads.scraped,
            refusals: sources.refusals,
            blocks,
            local,
            port_metrics,
            uplinks,
            pools,
            pool_uplinks,
            broker,
            zmq,
            source_tasks,
            uplink_tasks,
            service_tasks,
        })
    }

    /// Publishes events of one rank, and returns the number of their batch. Events that exceed one message become
    /// several batches; the last number is returned. Never waits: unsent batches stay in the journal, and a dump
    /// replaces evicted ones. For an engine that embeds the agent as its only source; other sources use the
    /// [hub](Self::hub).
    ///
    /// # Errors
    /// If the batch breaks a limit, or the incarnation's numbers are used up. Then the journal is unchanged.
    pub fn publish(&self, rank: DpRank, events: Vec<KvEvent>) -> Result<u64, AppendError> {
        self.feed.publish(rank, events)
    }

    /// Begins a new incarnation with an empty cache.
    pub fn begin_incarnation(&self, incarnation: Incarnation, first_sequence: u64) {
        self.feed.begin_incarnation(incarnation, first_sequence);
    }

    /// Hub that merges the agent's sources.
    #[must_use]
    pub const fn hub(&self) -> &Arc<Hub> {
        &self.hub
    }

    /// Publisher for the loads of the worker's ranks.
    #[must_use]
    pub const fn metrics(&self) -> &WorkerMetricsPublisher {
        &self.metrics
    }

    /// Receiver of the scrape status, notified of every read of the engine's metrics; `None` if they are not read.
    #[must_use]
    pub fn watch_scraped(&self) -> Option<watch::Receiver<ScrapeStatus>> {
        self.scraped.clone()
    }

    /// Refusals of publishers on the agent's port; `None` without `EventIngest`.
    #[must_use]
    pub const fn refusals(&self) -> Option<&Arc<Refusals>> {
        self.refusals.as_ref()
    }

    /// The block manager; `None` without one.
    #[must_use]
    pub const fn blocks(&self) -> Option<&Arc<Blocks>> {
        self.blocks.as_ref()
    }

    /// Address on which `LocalIndexer` is served; `None` without a port.
    #[must_use]
    pub const fn local_address(&self) -> Option<SocketAddr> {
        self.local
    }

    /// Metrics of the agent's port.
    #[must_use]
    pub const fn port_metrics(&self) -> &PortMetrics {
        &self.port_metrics
    }

    /// Status of the journal.
    #[must_use]
    pub fn status(&self) -> JournalStatus {
        self.feed.status()
    }

    /// Status of the journal on disk; `None` if it is in memory only.
    #[must_use]
    pub fn disk(&self) -> Option<DiskStatus> {
        self.feed.disk().map(Disk::status)
    }

    /// Waits until it is decided whether the incarnation on disk continues. Until then, nothing is published.
    pub async fn settled(&self) {
        self.feed.until_settled().await;
    }

    /// [Digest](kvasir_proto::digest) of all held blocks, as in heartbeats; `None` if blocks are missing because of the
    /// limit on held names.
    #[must_use]
    pub fn digest(&self) -> Option<u64> {
        let incarnation = self.feed.status().incarnation;
        self.feed.heartbeat(incarnation).and_then(|heartbeat| heartbeat.digest)
    }

    /// Status of each uplink, in the order of the indexers.
    #[must_use]
    pub fn uplinks(&self) -> Vec<UplinkStatus> {
        self.uplinks.iter().map(|uplink| uplink.borrow().clone()).collect()
    }

    /// Receivers of each uplink's status, in the order of the indexers.
    #[must_use]
    pub fn watch_uplinks(&self) -> Vec<watch::Receiver<UplinkStatus>> {
        self.uplinks.clone()
    }

    /// Stream of the store that engines share; `None` without `engine_pool`.
    #[must_use]
    pub const fn engine_pool(&self) -> Option<&Arc<Feed>> {
        self.pools.engine.as_ref()
    }

    /// Receivers of the status of the pools' uplinks, each with its pool and indexer; empty without a pool.
    #[must_use]
    pub fn watch_pool_uplinks(&self) -> Vec<PoolUplink> {
        self.pool_uplinks.clone()
    }

    /// Status of the broker; `None` without one.
    #[must_use]
    pub fn broker(&self) -> Option<BrokerStatus> {
        self.broker.as_ref().map(|broker| broker.borrow().clone())
    }

    /// Receiver of the broker's status; `None` without a broker.
    #[must_use]
    pub fn watch_broker(&self) -> Option<watch::Receiver<BrokerStatus>> {
        self.broker.clone()
    }

    /// Endpoints of the ZMQ sockets; `None` without ZMQ.
    #[must_use]
    pub fn zmq_endpoints(&self) -> Option<ZmqEndpoints> {
        self.zmq.as_ref().map(|zmq| zmq.endpoints)
    }

    /// Status of the ZMQ sockets; `None` without ZMQ.
    #[must_use]
    pub fn zmq(&self) -> Option<ZmqStatus> {
        self.zmq.as_ref().map(|zmq| zmq.status.borrow().clone())
    }

    /// Receiver of the ZMQ sockets' status; `None` without ZMQ.
    #[must_use]
    pub fn watch_zmq(&self) -> Option<watch::Receiver<ZmqStatus>> {
        self.zmq.as_ref().map(|zmq| zmq.status.clone())
    }

    /// Waits until every indexer and the broker have batch `sequence` of the current incarnation. Also returns when
    /// that incarnation is over, and does not wait for uplinks that have ended or for ZMQ subscribers, which do not
    /// confirm.
    pub async fn delivered(&self, sequence: u64) {
        let incarnation = self.feed.status().incarnation;
        for uplink in &self.uplinks {
            let has = |status: &UplinkStatus| {
                status.incarnation == incarnation && status.acknowledged >= Some(sequence)
            };
            let over = || self.feed.status().incarnation != incarnation;
            // An uplink that has ended will not deliver, so the wait for it ends.
            let mut uplink = uplink.clone();
            let _ended = uplink.wait_for(|status| has(status) || over()).await;
        }
        if let Some(mut broker) = self.broker.clone() {
            let has = |status: &BrokerStatus| {
                status.incarnation == incarnation && status.published >= Some(sequence)
            };
            let over = || self.feed.status().incarnation != incarnation;
            let _ended = broker.wait_for(|status| has(status) || over()).await;
        }
    }

    /// Waits for a fault: a task that ends before the agent is stopped. Stop the agent then.
    pub async fn fault(&mut self) -> Ended {
        let Self { source_tasks, uplink_tasks, service_tasks, .. } = self;
        TaskGroup::first_fault(&mut [source_tasks, uplink_tasks, service_tasks], IMAGE).await
    }

    /// Stops within `limit`, in this order: refuses engines' calls and completes waiting offloads, stops the sources,
    /// and delivers the rest of the journal to reachable indexers. Returns whether every task ended in time.
    pub async fn stop(mut self, limit: Duration) -> bool {
        let deadline = Instant::now() + limit;
        let offloaded = match &self.blocks {
            Some(blocks) => blocks.stop(deadline).await,
            None => true,
        };
        let followed = self.source_tasks.stop_by(deadline).await;
        self.hub.flush();
        let delivered = self.uplink_tasks.stop_by(deadline).await;
        let served = self.service_tasks.stop_by(deadline).await;
        offloaded && followed && delivered && served
    }
}

/// Checks that neither list of indexers exceeds its limit, and that `ingest` has a port.
const fn check(config: &AgentConfig) -> Result<(), AgentError> {
    let count = config.indexers.len();
    let limit = INDEXERS_MAX;
    if count > limit {
        return Err(AgentError::TooManyIndexers { count, limit });
    }
    let count = config.pool_indexers.len();
    let limit = POOL_INDEXERS_MAX;
    if count > limit {
        return Err(AgentError::TooManyIndexers { count, limit });
    }
    if config.sources.ingest.is_some() && config.listen.is_none() {
        return Err(AgentError::NoPort);
    }
    Ok(())
}

fn targets(indexers: &[String], dialer: &Dialer) -> Result<Vec<String>, DialError> {
    indexers.iter().map(|text| dialer.check(text)).collect()
}

/// Creates the service `LocalIndexer` for the agent's stream.
fn local_indexer(
    feed: &Arc<Feed>,
    config: ServiceConfig,
    stop: CancellationToken,
) -> Arc<LocalIndexerService> {
    let served = Served {
        address: feed.address().clone(),
        block_size: feed.block_size(),
        sources: vec![Arc::clone(feed)],
    };
    Arc::new(LocalIndexerService::new(served, config, stop))
}

/// Starts the block manager and binds its socket, if configured.
async fn start_blocks(
    config: Option<BlocksConfig>,
    address: &WorkerAddress,
) -> Result<(Option<Arc<Blocks>>, Option<SocketFile>), AgentError> {
    let Some(config) = config else { return Ok((None, None)) };
    let (blocks, socket) = Blocks::start(config, address.clone()).await?;
    Ok((Some(Arc::new(blocks)), socket))
}

/// Starts the task that publishes the feed to one index. Returns the receiver of the uplink's status.
fn start_uplink(
    feed: &Arc<Feed>,
    config: UplinkConfig,
    tasks: &mut TaskGroup,
) -> watch::Receiver<UplinkStatus> {
    let (status, receiver) = watch::channel(UplinkStatus::new(feed.status().incarnation));
    tasks.spawn("uplink", run_uplink(Arc::clone(feed), config, status, tasks.token()));
    receiver
}

/// Returns the registration. If it names no local indexer and the agent has a port, adds the port's URL: https if
/// `has_tls`.
fn reachable(
    mut registration: Option<Registration>,
    local: Option<SocketAddr>,
    has_tls: bool,
) -> Option<Registration> {
    let scheme = if has_tls { "https" } else { "http" };
    if let (Some(registration), Some(local)) = (&mut registration, local) {
        registration.local_indexer.get_or_insert_with(|| format!("{scheme}://{local}"));
    }
    registration
}
