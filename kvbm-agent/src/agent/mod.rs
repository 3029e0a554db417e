//! An agent of one worker: what an engine publishes goes in with [`Agent::publish`], is journalled, and goes up to
//! every indexer, over gRPC, NATS or as an engine would publish it; what an indexer missed it fetches from the
//! agent's `LocalIndexer`.

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
use kvasir_tasks::tasks::{Ended, Tasks};
use kvasir_tls::{DialError, Dialer};
use pool::Pools;
use port::serve_local;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, DropGuard};
use zmq::Zmq;

/// Most indexers that one agent feeds: the replicas of its shard.
pub const INDEXERS_MAX: usize = 16;
/// Most indexers of other shards.
pub const POOL_INDEXERS_MAX: usize = 256;
/// How often indexers are sent a heartbeat, unless it is configured: often enough for
/// leases of 15 s and more.
pub const HEARTBEAT_INTERVAL_DEFAULT: Duration = Duration::from_secs(5);
/// Most often.
const HEARTBEAT_INTERVAL_MIN: Duration = Duration::from_millis(10);

/// The one task that may end before the agent does: without a usable disk there are no images.
const IMAGE: &str = "image";

/// What an agent is to do.
#[derive(Debug, Clone)]
pub struct AgentConfig {
    /// The agent's stream.
    pub source: SourceConfig,
    /// Folder of its journal on disk, so that a restarted agent continues if its engine survived;
    /// none for memory only.
    pub journal_dir: Option<PathBuf>,
    /// What feeds it.
    pub sources: SourcesConfig,
    /// The block manager beside them; none for none.
    pub blocks: Option<BlocksConfig>,
    /// Indexers to feed (`host:port`, `http://host:port` or `https://host:port`), at most [`INDEXERS_MAX`].
    pub indexers: Vec<String>,
    /// The pool of the store that engines announce as shared with other workers; none to leave that out.
    pub engine_pool: Option<WorkerId>,
    /// Indexers of other shards: the contents of pools are published to them, too, because workers of all shards read
    /// them; at most [`POOL_INDEXERS_MAX`].
    pub pool_indexers: Vec<String>,
    /// What connects to them.
    pub dialer: Dialer,
    /// NATS servers to publish and answer over, beside or in place of them.
    pub broker: Option<BrokerConfig>,
    /// Sockets on which it is published as an engine would, for consumers that expect one; none for not at all.
    pub zmq: Option<ZmqConfig>,
    /// How busy its ranks are, and how that is published.
    pub loads: LoadConfig,
    /// How the worker is registered at indexers; none if it is registered elsewhere. Without an address of
    /// `LocalIndexer` it gets the one that is listened on.
    pub registration: Option<Registration>,
    /// Whether the worker is removed from indexers when the agent is stopped.
    pub deregister: bool,
    /// How often indexers are sent a heartbeat; at least 10 ms. Three times
    /// in the worker's lease, if it has one.
    pub heartbeat_interval: Duration,
    /// Where to serve `LocalIndexer` and `WorkerLoads`; none for not at all. Port 0 is any.
    pub listen: Option<SocketAddr>,
    /// TLS of that port; none for none.
    pub guard: Guard,
    /// Bounds of that service.
    pub service: ServiceConfig,
}

/// A running agent. Dropped without [`stop`](Self::stop), it ends at once and delivers nothing more.
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
    source_tasks: Tasks,
    uplink_tasks: Tasks,
    service_tasks: Tasks,
    /// Dropped, they stop what they guard.
    stop_sources: DropGuard,
    stop_uplinks: DropGuard,
    stop_service: DropGuard,
}

impl Agent {
    /// Starts an agent. It need not reach its indexers yet.
    ///
    /// # Errors
    /// If the source breaks the contract, too many indexers are given, or the port cannot be had.
    #[expect(clippy::too_many_lines, reason = "it puts all parts together, one after the other")]
    pub async fn start(config: AgentConfig) -> Result<Self, AgentError> {
        check(&config)?;
        let has_tls = config.guard.tls.is_some();
        let indexers = targets(&config.indexers, &config.dialer)?;
        let pool_indexers = targets(&config.pool_indexers, &config.dialer)?;
        let pool_ids = (pool::pool_of(config.blocks.as_ref())?, config.engine_pool);
        let lora_names = config.registration.as_ref().map(|at| at.lora_names.clone());
        let lora_names = lora_names.unwrap_or_default();
        let (blocks, socket) = start_blocks(config.blocks, &config.source.address).await?;
        let source = config.source;
        let journal_dir = config.journal_dir;
        let read = (lora_names.clone(), config.sources.hub.consolidate);
        let (feed, found) = disk::open_feed(source.clone(), journal_dir.clone(), read).await?;
        let at = (journal_dir.as_deref(), lora_names);
        let pools = Pools::open(pool_ids, &source, at).await?;
        let feed = Arc::new(feed);
        let heartbeat_interval = config.heartbeat_interval.max(HEARTBEAT_INTERVAL_MIN);
        let stop_uplinks = CancellationToken::new();
        let stop_service = CancellationToken::new();
        let mut uplink_tasks = Tasks::default();
        let mut service_tasks = Tasks::default();
        let stop_sources = CancellationToken::new();
        let mut source_tasks = Tasks::default();
        let loads = loads::start(&feed, &config.loads, &mut source_tasks, &stop_sources)?;
        let tasks = &mut source_tasks;
        let stop = &stop_sources;
        let sources =
            sources::start((&feed, found), (config.sources, blocks.as_ref(), &pools), tasks, stop)?;
        // Not cut off before what sources publish is on disk.
        for feed in [&feed].into_iter().chain(&pools.engine) {
            service_tasks.spawn(IMAGE, write_images(Arc::clone(feed), stop_service.clone()));
        }
        let service = local_indexer(&feed, config.service, stop_service.clone());
        let context = broker::Context {
            feed: &feed,
            board: &loads.board,
            service: &service,
            blocks: blocks.as_ref(),
            heartbeat_interval,
            loads_interval: config.loads.min_interval,
        };
        let broker = config.broker.map(|broker| {
            broker::start(&context, broker, &mut uplink_tasks, &mut service_tasks, &stop_uplinks)
        });
        let broker = broker.transpose()?;
        let publishing = (&mut uplink_tasks, &stop_uplinks);
        let replaying = (&mut service_tasks, &stop_service);
        let zmq = Zmq::start(&feed, config.zmq, publishing, replaying).await?;
        let loads_of = loads.service(&feed, config.service, heartbeat_interval, &stop_service);
        let ingest = sources.ingest;
        let offered = Offered { local: service, loads: loads_of, ingest, blocks: blocks.clone() };
        let at = (config.listen, config.guard);
        let (local, port_metrics) = serve_local(at, (offered, socket), &mut service_tasks).await?;
        let registration = reachable(config.registration, local, has_tls);
        let uplink = |endpoint| {
            let registration = registration.clone();
            let deregister = config.deregister;
            let dialer = config.dialer.clone();
            let overrun = Overrun::Skip;
            UplinkConfig { endpoint, dialer, heartbeat_interval, registration, deregister, overrun }
        };
        let everywhere: Vec<_> = indexers.iter().chain(&pool_indexers).collect();
        let start = |feed: &_, uplink| start_uplink(feed, uplink, &mut uplink_tasks, &stop_uplinks);
        let by = (&config.dialer, heartbeat_interval);
        let pool_uplinks = pools.start_uplinks(by, &everywhere, start)?;
        let start = |uplink| start_uplink(&feed, uplink, &mut uplink_tasks, &stop_uplinks);
        let uplinks = indexers.into_iter().map(uplink).map(start).collect();
        let stop_uplinks = stop_uplinks.drop_guard();
        let stop_service = stop_service.drop_guard();
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
            stop_sources: stop_sources.drop_guard(),
            stop_uplinks,
            stop_service,
        })
    }

    /// Takes what happened at one rank, and gives it a number; several, of which it returns the last,
    /// where it is more than one message carries. Never waits: what an indexer does not
    /// take yet stays in the journal, and a dump has what the journal cannot retain.
    /// For an engine that embeds the agent as its only source; others go through the [hub](Self::hub).
    ///
    /// # Errors
    /// If the batch breaks a limit, or the incarnation's numbers are used up: then nothing has changed.
    pub fn publish(&self, rank: DpRank, events: Vec<KvEvent>) -> Result<u64, AppendError> {
        self.feed.publish(rank, events)
    }

    /// The cache starts empty again, under a new incarnation.
    pub fn begin_incarnation(&self, incarnation: Incarnation, first_sequence: u64) {
        self.feed.begin_incarnation(incarnation, first_sequence);
    }

    /// Where its sources come together.
    #[must_use]
    pub const fn hub(&self) -> &Arc<Hub> {
        &self.hub
    }

    /// What takes how busy a rank is.
    #[must_use]
    pub const fn metrics(&self) -> &WorkerMetricsPublisher {
        &self.metrics
    }

    /// Progress of reading the engine's metrics, with a notification of every read; none if they are not read.
    #[must_use]
    pub fn watch_scraped(&self) -> Option<watch::Receiver<ScrapeStatus>> {
        self.scraped.clone()
    }

    /// What publishers were refused on its port; none without `EventIngest`.
    #[must_use]
    pub const fn refusals(&self) -> Option<&Arc<Refusals>> {
        self.refusals.as_ref()
    }

    /// Its block manager; none without one.
    #[must_use]
    pub const fn blocks(&self) -> Option<&Arc<Blocks>> {
        self.blocks.as_ref()
    }

    /// Where `LocalIndexer` is served.
    #[must_use]
    pub const fn local_address(&self) -> Option<SocketAddr> {
        self.local
    }

    /// Metrics of that port.
    #[must_use]
    pub const fn port_metrics(&self) -> &PortMetrics {
        &self.port_metrics
    }

    /// State of the journal.
    #[must_use]
    pub fn status(&self) -> JournalStatus {
        self.feed.status()
    }

    /// State of the journal on disk; none if it is in memory only.
    #[must_use]
    pub fn disk(&self) -> Option<DiskStatus> {
        self.feed.disk().map(Disk::status)
    }

    /// Waits until it is known whether the incarnation on disk continues; until then nothing is published.
    pub async fn settled(&self) {
        self.feed.until_settled().await;
    }

    /// [Digest](kvasir_proto::digest) of all that it holds, as in its heartbeats; none where blocks are
    /// missing for the limit on held names.
    #[must_use]
    pub fn digest(&self) -> Option<u64> {
        let incarnation = self.feed.status().incarnation;
        self.feed.heartbeat(incarnation).and_then(|heartbeat| heartbeat.digest)
    }

    /// How far each uplink has come, in the order of the indexers.
    #[must_use]
    pub fn uplinks(&self) -> Vec<UplinkStatus> {
        self.uplinks.iter().map(|uplink| uplink.borrow().clone()).collect()
    }

    /// The same, with word of every change.
    #[must_use]
    pub fn watch_uplinks(&self) -> Vec<watch::Receiver<UplinkStatus>> {
        self.uplinks.clone()
    }

    /// The stream of the store that engines share; none without `engine_pool`.
    #[must_use]
    pub const fn engine_pool(&self) -> Option<&Arc<Feed>> {
        self.pools.engine.as_ref()
    }

    /// How far the uplinks of its pools have come, each with the pool and the indexer; none without a pool. With word of
    /// every change.
    #[must_use]
    pub fn watch_pool_uplinks(&self) -> Vec<PoolUplink> {
        self.pool_uplinks.clone()
    }

    /// How far the broker has come; none without one.
    #[must_use]
    pub fn broker(&self) -> Option<BrokerStatus> {
        self.broker.as_ref().map(|broker| broker.borrow().clone())
    }

    /// The same, with word of every change.
    #[must_use]
    pub fn watch_broker(&self) -> Option<watch::Receiver<BrokerStatus>> {
        self.broker.clone()
    }

    /// Where it is published as an engine would; none where it is not.
    #[must_use]
    pub fn zmq_endpoints(&self) -> Option<ZmqEndpoints> {
        self.zmq.as_ref().map(|zmq| zmq.endpoints)
    }

    /// How far that has come.
    #[must_use]
    pub fn zmq(&self) -> Option<ZmqStatus> {
        self.zmq.as_ref().map(|zmq| zmq.status.borrow().clone())
    }

    /// The same, with word of every change.
    #[must_use]
    pub fn watch_zmq(&self) -> Option<watch::Receiver<ZmqStatus>> {
        self.zmq.as_ref().map(|zmq| zmq.status.clone())
    }

    /// Waits until every indexer has batch `sequence` of the incarnation that is present now, and the broker
    /// too, or that incarnation is over. Subscribers of its ZMQ sockets do not confirm, and are not waited for.
    pub async fn delivered(&self, sequence: u64) {
        let incarnation = self.feed.status().incarnation;
        for uplink in &self.uplinks {
            let has = |status: &UplinkStatus| {
                status.incarnation == incarnation && status.acknowledged >= Some(sequence)
            };
            let over = || self.feed.status().incarnation != incarnation;
            // An uplink that has ended will not deliver: then there is nothing to wait for.
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
        Tasks::first_fault(&mut [source_tasks, uplink_tasks, service_tasks], IMAGE).await
    }

    /// Stops within `limit`, in this order: it refuses the calls of engines and offloads what waits, takes nothing more from
    /// its sources, and delivers what the journal has to the indexers that can be reached. Returns whether every task
    /// came to its end in time.
    pub async fn stop(mut self, limit: Duration) -> bool {
        let deadline = Instant::now() + limit;
        let offloaded = match &self.blocks {
            Some(blocks) => blocks.stop(deadline).await,
            None => true,
        };
        drop(self.stop_sources);
        let followed = self.source_tasks.end(deadline).await;
        self.hub.flush();
        drop(self.stop_uplinks);
        let delivered = self.uplink_tasks.end(deadline).await;
        drop(self.stop_service);
        let served = self.service_tasks.end(deadline).await;
        offloaded && followed && delivered && served
    }
}

/// What goes together.
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

/// The service `LocalIndexer` over the agent's stream.
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

/// The block manager, and the socket to serve it on, if there are any.
async fn start_blocks(
    config: Option<BlocksConfig>,
    address: &WorkerAddress,
) -> Result<(Option<Arc<Blocks>>, Option<SocketFile>), AgentError> {
    let Some(config) = config else { return Ok((None, None)) };
    let (blocks, socket) = Blocks::start(config, address.clone()).await?;
    Ok((Some(Arc::new(blocks)), socket))
}

fn start_uplink(
    feed: &Arc<Feed>,
    config: UplinkConfig,
    tasks: &mut Tasks,
    stop: &CancellationToken,
) -> watch::Receiver<UplinkStatus> {
    let (status, receiver) = watch::channel(UplinkStatus::new(feed.status().incarnation));
    tasks.spawn("uplink", run_uplink(Arc::clone(feed), config, status, stop.clone()));
    receiver
}

/// The registration with the address of the agent's own port, unless it names another one.
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
