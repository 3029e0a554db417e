//! The process: its tasks and ports, run and stopped in order.

use crate::agents;
use crate::config::Config;
use crate::discovery::Discovery;
use crate::fleet::Fleet;
use crate::grpc::{RouterService, serve};
use crate::metrics::{FleetMetrics, RequestMetrics};
use crate::reports::KvMetricsAggregator;
use crate::sync::{self, SyncStatus};
use kvasir_process::http::{self, OwnPage};
use kvasir_process::port::PortMetrics;
use kvasir_process::tasks::{self, EndError, Ended, Tasks};
use kvasir_process::telemetry::{Metrics, Readiness, new_registry};
use router_client::route::BusyThresholds;
use router_client::router::Index;
use router_client::{ClientConfig, ClientError, IndexerClient, ShardedClient, ShardedConfig};
use serde::{Deserialize, Serialize};
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::select;
use tokio::time::{Instant, MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

/// How often leases are looked at.
const LEASE_INTERVAL: Duration = Duration::from_secs(1);
/// Most queries to the index under way.
const QUERIES_MAX: usize = 1_024;

/// Why the process ends, other than by a signal.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The index cannot be asked.
    #[error("indexer: {0}")]
    Index(#[from] ClientError),
    /// A port cannot be opened.
    #[error(
        "{option}: cannot listen on {address}: {error}; choose another address with --{option}"
    )]
    Listen {
        /// The option.
        option: &'static str,
        /// The address.
        address: SocketAddr,
        /// Why.
        error: io::Error,
    },
    /// A task failed, or stopping took longer than it may.
    #[error(transparent)]
    End(#[from] EndError),
}

/// What runs in the background.
struct Running {
    tasks: Tasks,
    /// The side port, which stops last.
    side: Tasks,
    stop: CancellationToken,
    stop_http: CancellationToken,
    readiness: Readiness,
}

/// Runs a router until `signal` is ready, then stops in order: first the gRPC port, once its calls are answered, and all
/// that lists, reports and syncs; then the side port.
///
/// # Errors
/// If a port cannot be had, a task fails, or stopping takes too long.
pub async fn run(config: Config, signal: impl Future<Output = ()>) -> Result<(), RunError> {
    let (listener, http_listener) = listen(&config).await?;
    let drain_timeout = config.process.drain_timeout;
    let mut running = start(&config, listener, http_listener)?;
    let fault = select! {
        () = pin!(signal) => None,
        fault = running.tasks.next_ended() => fault,
        fault = running.side.next_ended() => fault,
    };
    if let Some(Ended { name, outcome }) = &fault {
        tracing::error!(task = name, ?outcome, "a task ended early: the router stops");
    }
    let stopping = running.readiness.hold("stopping");
    tracing::info!("stopping");
    let deadline = Instant::now() + drain_timeout;
    running.stop.cancel();
    let is_stopped = running.tasks.end(deadline).await;
    // Until now it showed that the router stops.
    running.stop_http.cancel();
    let is_clean = running.side.end(deadline).await && is_stopped;
    drop(stopping);
    tasks::end(fault, is_clean, drain_timeout)?;
    tracing::info!("stopped");
    Ok(())
}

async fn listen(config: &Config) -> Result<(TcpListener, TcpListener), RunError> {
    let bind = async |option, address| {
        let bound = TcpListener::bind(address).await;
        bound.map_err(|error| RunError::Listen { option, address, error })
    };
    let grpc = bind("listen", config.process.listen).await?;
    let http = bind("http-listen", config.process.http.listen).await?;
    tracing::info!(
        grpc = grpc.local_addr().ok().map(tracing::field::display),
        http = http.local_addr().ok().map(tracing::field::display),
        "listening"
    );
    Ok((grpc, http))
}

fn start(
    config: &Config,
    listener: TcpListener,
    http_listener: TcpListener,
) -> Result<Running, RunError> {
    let index = index(config)?;
    let dialer = &config.process.dialer;
    let fleet = Arc::new(Fleet::new(config.router, config.pools.clone(), index));
    let reports = Arc::new(KvMetricsAggregator::new(config.report_stale_after));
    let discovery =
        Discovery::new((&config.shards, dialer), Arc::clone(&fleet), Arc::clone(&reports));
    let discovery = Arc::new(discovery?);
    let sync_status = Arc::new(SyncStatus::default());

    let mut registry = new_registry();
    let requests = RequestMetrics::registered(&mut registry);
    let port_metrics = PortMetrics::default();
    port_metrics.register(&mut registry);
    registry.register_collector(Box::new(FleetMetrics(Arc::clone(&fleet))));
    sync_status.register(&mut registry);
    let readiness = readiness(&discovery, &sync_status);
    let unlisted = readiness.hold("waiting for an index that lists its workers");

    let (stop, stop_http) = (CancellationToken::new(), CancellationToken::new());
    let mut tasks = Tasks::default();
    let service = RouterService::new(
        Arc::clone(&fleet),
        Arc::clone(&reports),
        requests,
        config.queue_timeout,
        stop.clone(),
    );
    let serving =
        serve((listener, config.process.tls.clone()), service, port_metrics, stop.clone());
    tasks.spawn("grpc", async { Ok(serving.await?) });
    let pages = vec![busy_page(&fleet)];
    let metrics = Metrics::new(registry);
    let tls = config.process.http.tls.clone();
    let ready = readiness.clone();
    let http = http::serve(http_listener, tls, metrics, ready, pages, stop_http.clone());
    let mut side = Tasks::default();
    side.spawn("http", async { Ok(http.await?) });
    let until = |work| until_stopped(stop.clone(), work);
    tasks.spawn("leases", until(Box::pin(expire(Arc::clone(&fleet)))));
    let reading = agents::run(discovery.listed(), Arc::clone(&reports), dialer.clone());
    tasks.spawn("agents", until(Box::pin(reading)));
    let every = config.discovery_interval;
    tasks.spawn("discovery", until(Box::pin(async move { discovery.run(every, unlisted).await })));
    if let Some(nats) = &config.nats {
        let parts = sync::Parts { fleet, reports, status: sync_status, servers: nats.clone() };
        tasks.spawn("nats", until(Box::pin(sync::run(parts))));
    }
    Ok(Running { tasks, side, stop, stop_http, readiness })
}

type Work = std::pin::Pin<Box<dyn Future<Output = ()> + Send>>;

async fn until_stopped(stop: CancellationToken, work: Work) {
    let _stopped = stop.run_until_cancelled(work).await;
}

fn index(config: &Config) -> Result<Index, ClientError> {
    let client = ClientConfig {
        deadline: config.index_deadline,
        in_flight_max: QUERIES_MAX,
        dialer: config.process.dialer.clone(),
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

fn readiness(discovery: &Arc<Discovery>, sync: &Arc<SyncStatus>) -> Readiness {
    let (discovery, sync) = (Arc::clone(discovery), Arc::clone(sync));
    Readiness::with_problems(move || {
        let mut problems = discovery.problems();
        problems.extend(sync.problem());
        problems
    })
}

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

/// The thresholds as `/busy_threshold` has them.
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

fn busy_page(fleet: &Arc<Fleet>) -> OwnPage {
    let fleet = Arc::clone(fleet);
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
