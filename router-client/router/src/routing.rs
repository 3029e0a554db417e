//! Routing without a port: discovery of workers, a router for each model, engines' load reports, replica sync. The
//! router serves it over gRPC; the gateway calls it.

use crate::agents;
use crate::config::RoutingConfig;
use crate::discovery::Discovery;
use crate::fleet::{Fleet, Listing};
use crate::metrics::FleetMetrics;
use crate::pages::{self, StatedEngines};
use crate::recorder::{RecordWriter, Recorder};
use crate::reports::KvMetricsAggregator;
use crate::sync::{self, SyncStatus};
use kvasir_process::http::OwnPage;
use kvasir_process::nats::NatsServers;
use kvasir_process::telemetry::{NotReady, Readiness};
use kvasir_tasks::group::TaskGroup;
use prometheus_client::registry::Registry;
use router_client::route::BusyThresholds;
use router_client::router::Index;
use router_client::{
    ClientConfig, ClientError, Dialer, IndexerClient, ShardedClient, ShardedConfig,
};
use serde::{Deserialize, Serialize};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval};

/// Interval of checking leases.
const LEASE_INTERVAL: Duration = Duration::from_secs(1);
/// Maximum queries to the index in flight.
const QUERIES_MAX: usize = 1_024;

/// The routers of a process, and the tasks that keep them up to date.
#[derive(Debug)]
pub struct Routing {
    /// The routers.
    pub fleet: Arc<Fleet>,
    /// Load reports of engines.
    pub reports: Arc<KvMetricsAggregator>,
    discovery: Arc<Discovery>,
    discovery_interval: Duration,
    sync_status: Arc<SyncStatus>,
    dialer: Dialer,
    engines: StatedEngines,
    nats: Option<NatsServers>,
    /// Records requests, if enabled.
    pub recorder: Recorder,
    writer: Option<RecordWriter>,
}

/// Why routing cannot start.
#[derive(Debug, thiserror::Error)]
pub enum RoutingError {
    /// The client of the index could not be created.
    #[error("indexer: {0}")]
    Index(#[from] ClientError),
    /// The record file cannot be opened.
    #[error("record: {}: {error}", path.display())]
    Record {
        /// Path of the file.
        path: PathBuf,
        /// Cause.
        error: io::Error,
    },
}

impl Routing {
    /// Creates the parts without starting tasks.
    ///
    /// # Errors
    /// If the client of the index cannot be created, or the record file cannot be opened.
    pub fn new(config: &RoutingConfig) -> Result<Self, RoutingError> {
        let index = index(config)?;
        let fleet = Arc::new(Fleet::new(config.router, config.pools.clone(), index));
        let reports = Arc::new(KvMetricsAggregator::new(config.report_stale_after));
        let discovery = Discovery::new(
            &config.shards,
            &config.dialer,
            Arc::clone(&fleet),
            Arc::clone(&reports),
        );
        let (recorder, writer) = Recorder::open(config.record.as_deref()).map_err(|error| {
            RoutingError::Record { path: config.record.clone().unwrap_or_default(), error }
        })?;
        Ok(Self {
            fleet,
            reports,
            discovery: Arc::new(discovery?),
            discovery_interval: config.discovery_interval,
            sync_status: Arc::default(),
            dialer: config.dialer.without_token(),
            engines: config.engines.clone(),
            nats: config.nats.clone(),
            recorder,
            writer,
        })
    }

    /// Receives changes of the workers.
    #[must_use]
    pub fn listed(&self) -> watch::Receiver<Arc<Listing>> {
        self.discovery.listed()
    }

    /// Registers the collectors of the metrics page.
    pub fn register(&self, registry: &mut Registry) {
        registry.register_collector(Box::new(FleetMetrics(Arc::clone(&self.fleet))));
        self.sync_status.register(registry);
        self.recorder.register(registry);
    }

    /// Returns a function that lists current problems, one line each.
    pub fn problems(&self) -> impl Fn() -> Vec<String> + Send + Sync + use<> {
        let discovery = Arc::clone(&self.discovery);
        let sync = Arc::clone(&self.sync_status);
        move || {
            let mut problems = discovery.problems();
            problems.extend(sync.problem());
            problems
        }
    }

    /// A readiness state that lists these problems.
    #[must_use]
    pub fn readiness(&self) -> Readiness {
        Readiness::with_problems(self.problems())
    }

    /// The page `/busy_threshold` of the side port.
    #[must_use]
    pub fn busy_page(&self) -> OwnPage {
        busy_page(Arc::clone(&self.fleet))
    }

    /// Starts the task that records requests, if enabled. When the group stops, the task writes the queued records.
    pub fn start_recorder(&mut self, tasks: &mut TaskGroup) {
        if let Some(writer) = self.writer.take() {
            tasks.spawn("recorder", writer.run(tasks.token()));
        }
    }

    /// Starts the tasks, which end when the group stops. `unlisted` is dropped once the workers are known.
    pub fn start(self, tasks: &mut TaskGroup, unlisted: NotReady) {
        let Self {
            fleet,
            reports,
            discovery,
            discovery_interval,
            sync_status,
            dialer,
            engines,
            nats,
            ..
        } = self;
        tasks.spawn_until_stop("leases", expire(Arc::clone(&fleet)));
        let reading = agents::run(discovery.listed(), Arc::clone(&reports), dialer);
        tasks.spawn_until_stop("agents", reading);
        let reading = pages::run(discovery.listed(), engines, Arc::clone(&reports));
        tasks.spawn_until_stop("pages", reading);
        let listing = async move { discovery.run(discovery_interval, unlisted).await };
        tasks.spawn_until_stop("discovery", listing);
        if let Some(servers) = nats {
            let parts = sync::Parts { fleet, reports, status: sync_status, servers };
            tasks.spawn_until_stop("nats", sync::run(parts));
        }
    }
}

/// Creates the client of the index: of one server, or of several shards or replicas.
fn index(config: &RoutingConfig) -> Result<Index, ClientError> {
    let client = ClientConfig {
        deadline: config.index_deadline,
        in_flight_max: QUERIES_MAX,
        dialer: config.dialer.clone(),
        ..ClientConfig::default()
    };
    match config.shards.as_slice() {
        [only] if let [url] = only.as_slice() => {
            Ok(Index::One(IndexerClient::connect(url, client)?))
        }
        shards => {
            let config = ShardedConfig { client, ..ShardedConfig::default() };
            Ok(Index::Sharded(ShardedClient::connect(shards, &config)?))
        }
    }
}

/// Ends requests whose lease is over, every [`LEASE_INTERVAL`].
async fn expire(fleet: Arc<Fleet>) {
    let mut looks = interval(LEASE_INTERVAL);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        looks.tick().await;
        for (key, partition) in fleet.partitions() {
            for router in partition.routers() {
                let expired = router.tick();
                if expired > 0 {
                    tracing::info!(%key, expired, "requests whose lease ended no longer count");
                }
            }
        }
    }
}

/// The thresholds in the format of `/busy_threshold`.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct BusyPage {
    #[serde(default)]
    active_decode_blocks_threshold: Option<f64>,
    #[serde(default)]
    active_prefill_tokens_threshold: Option<u64>,
    #[serde(default)]
    active_prefill_tokens_threshold_frac: Option<f64>,
}

/// Builds the side port's page that shows and sets the thresholds for busy workers.
fn busy_page(fleet: Arc<Fleet>) -> OwnPage {
    OwnPage::new("/busy_threshold", move |sent| {
        if let Some(sent) = sent {
            let page: BusyPage = serde_json::from_str(sent).map_err(|error| error.to_string())?;
            let busy = BusyThresholds {
                active_decode_blocks: page.active_decode_blocks_threshold,
                active_prefill_tokens: page.active_prefill_tokens_threshold,
                active_prefill_tokens_fraction: page.active_prefill_tokens_threshold_frac,
            };
            fleet.set_busy_thresholds(busy).map_err(|error| error.to_string())?;
        }
        let busy = fleet.busy_thresholds();
        let page = BusyPage {
            active_decode_blocks_threshold: busy.active_decode_blocks,
            active_prefill_tokens_threshold: busy.active_prefill_tokens,
            active_prefill_tokens_threshold_frac: busy.active_prefill_tokens_fraction,
        };
        serde_json::to_string(&page).map_err(|error| error.to_string())
    })
}
