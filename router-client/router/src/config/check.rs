use super::settings::place;
use super::{Credits, Options, Queue, RoutingOptions, WorkerHealth};
use kvasir_process::config::ConfigError;
use kvasir_process::nats::NatsServers;
use kvasir_process::options::{ProcessConfig, dialled, positive};
use kvasir_process::text::Span;
use kvasir_proto::types::WorkerId;
use router_client::route::{
    ActiveConfig, BusyThresholds, ConfigError as SettingError, CostConfig, FetchConfig,
    OutlierConfig, PreferenceWeights, QueueConfig, SelectConfig, SlowStart, SyncConfig,
    TierCredits, TrustConfig,
};
use router_client::router::{PoolsConfig, RouterConfig};
use router_client::{Dialer, REPLICAS_MAX};
use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::time::Duration;

/// Maximum number of shards.
const SHARDS_MAX: usize = 256;
/// Maximum wait in the queue of a router: its response has to begin within 30 s.
const QUEUE_TIMEOUT_MAX: Duration = Duration::from_secs(25);
/// How long a recorded decision counts if engines publish no events (`--router-ttl-secs` of document 004).
const PLACEMENT_TTL_DEFAULT: Duration = Duration::from_secs(120);
/// Maximum ejection time, as a multiple of the first one.
const EJECTION_GROWTH: u32 = 10;
/// Placeholder; each partition has its own block size.
const BLOCK_SIZE: NonZeroU32 = NonZeroU32::MIN;

/// Checked options.
#[derive(Debug, Clone)]
pub struct Config {
    /// Ports, logs and shutdown.
    pub process: ProcessConfig,
    /// Discovery and choice of workers.
    pub routing: RoutingConfig,
}

/// Checked options for the discovery and choice of workers.
#[derive(Debug, Clone)]
pub struct RoutingConfig {
    /// Index servers: for each shard, its replicas.
    pub shards: Vec<Vec<String>>,
    /// Opens connections to index servers and agents.
    pub dialer: Dialer,
    /// Maximum wait for the index.
    pub index_deadline: Duration,
    /// Configured HTTP addresses of engines, by worker; they override the workers' labels. Empty in the router.
    pub engines: BTreeMap<WorkerId, String>,
    /// Time between two requests for the workers.
    pub discovery_interval: Duration,
    /// Settings of the library routers; each partition has its own block size.
    pub router: RouterConfig,
    /// When prefill workers compute prompts.
    pub pools: PoolsConfig,
    /// Maximum wait in the queue.
    pub queue_timeout: Duration,
    /// NATS servers, if configured.
    pub nats: Option<NatsServers>,
    /// Age after which an engine's load report is stale.
    pub report_stale_after: Duration,
    /// File to which requests are recorded, if configured.
    pub record: Option<PathBuf>,
}

impl Config {
    /// Checks options.
    ///
    /// # Errors
    /// If an option is missing or invalid; the error names it.
    pub fn check(options: &Options) -> Result<Self, ConfigError> {
        let process = options.process.check()?;
        let routing = RoutingConfig::check(&options.routing, &process.dialer)?;
        if routing.queue_timeout > QUEUE_TIMEOUT_MAX {
            let given = options.routing.queue.0.timeout;
            let max = Span(QUEUE_TIMEOUT_MAX);
            let why = format!("is {given}, at most {max}");
            return Err(ConfigError::invalid("queue: timeout", why));
        }
        Ok(Self { process, routing })
    }
}

impl RoutingConfig {
    /// Checks options.
    ///
    /// # Errors
    /// If an option is missing or invalid; the error names it.
    pub fn check(options: &RoutingOptions, dialer: &Dialer) -> Result<Self, ConfigError> {
        let router = router(options)?;
        router.check().map_err(|error| setting(&error))?;
        let timing = &options.timing.0;
        Ok(Self {
            shards: shards(&options.indexer, dialer)?,
            dialer: dialer.clone(),
            engines: BTreeMap::new(),
            index_deadline: positive("timing: index-deadline", timing.index_deadline)?,
            discovery_interval: positive("timing: discovery-interval", timing.discovery_interval)?,
            router,
            pools: pools(options),
            queue_timeout: positive("queue: timeout", options.queue.0.timeout)?,
            nats: nats(options)?,
            report_stale_after: positive("timing: report-stale-after", timing.report_stale_after)?,
            record: options.record.clone(),
        })
    }
}

/// Converts an error of the library.
fn setting(error: &SettingError) -> ConfigError {
    ConfigError::invalid(place(error.setting), error.problem)
}

/// Checks the URLs of the index's shards, each with its replicas. Fails if there are none or too many.
fn shards(given: &[String], dialer: &Dialer) -> Result<Vec<Vec<String>>, ConfigError> {
    const FIELD: &str = "indexer";
    if given.is_empty() {
        let why = "is required: the server of the index, such as http://127.0.0.1:50051";
        return Err(ConfigError::invalid(FIELD, why));
    }
    if given.len() > SHARDS_MAX {
        let why = format!("{} shards are too many, the limit is {SHARDS_MAX}", given.len());
        return Err(ConfigError::invalid(FIELD, why));
    }
    let shard = |text: &String| {
        let replicas: Result<Vec<_>, _> =
            text.split(',').map(|at| dialled(FIELD, at, dialer)).collect();
        let replicas = replicas?;
        if replicas.len() > REPLICAS_MAX {
            let why =
                format!("{} replicas are too many, the limit is {REPLICAS_MAX}", replicas.len());
            return Err(ConfigError::invalid(FIELD, why));
        }
        Ok(replicas)
    };
    given.iter().map(shard).collect()
}

/// Converts the routing options to the library's configuration.
fn router(options: &RoutingOptions) -> Result<RouterConfig, ConfigError> {
    let timing = &options.timing.0;
    let load = &options.load.0;
    let active = ActiveConfig {
        blocks: load.track_blocks,
        reuse: load.kv_reuse,
        track_prefill_tokens: load.track_prefill_tokens,
        lease: timing.request_lease.0,
        ..ActiveConfig::new(BLOCK_SIZE)
    };
    let Queue { threshold, policy, entries, .. } = options.queue.0;
    let threshold = Some(threshold).filter(|at| *at != 0.0);
    let WorkerHealth { ejection_failures, ejection_time: Span(ejection), .. } =
        options.worker_health.0;
    let outliers = OutlierConfig {
        failures: ejection_failures,
        ejection,
        ejection_max: ejection.saturating_mul(EJECTION_GROWTH),
        ..OutlierConfig::default()
    };
    let trust = TrustConfig {
        max_staleness: timing.max_staleness.0.map(|Span(time)| time),
        uncertain_credit: options.credits.0.uncertain,
    };
    let given = timing.placement_ttl.0.map(|ttl| positive("timing: placement-ttl", ttl));
    let given = given.transpose()?;
    let placement_ttl = given.or((!options.kv_events).then_some(PLACEMENT_TTL_DEFAULT));
    let digest_interval = timing.sync_digest_interval.0;
    let rates = &options.fetch_rates.0;
    let fetch = options.fetch_plans.then_some(FetchConfig {
        bytes_per_second: rates.bandwidth.0 as f64,
        prefill_tokens_per_second: rates.prefill,
    });
    Ok(RouterConfig {
        select: select(options),
        active,
        queue: QueueConfig { threshold, policy, entries_max: entries },
        outliers,
        trust,
        fetch,
        session_ttl: Some(timing.session_ttl.0).filter(|ttl| !ttl.is_zero()),
        placement_ttl,
        sync: options.replica_sync.then_some(SyncConfig { digest_interval }),
    })
}

/// Converts the options that determine the choice of a worker.
fn select(options: &RoutingOptions) -> SelectConfig {
    let Credits { device, host, disk, pool, uncertain: _ } = options.credits.0;
    let cost = CostConfig {
        overlap_score_weight: options.overlap_score_weight,
        credits: TierCredits { device, host, disk, pool },
        active_prefill_weight: options.load.0.active_prefill_weight,
        decode_price: options.load.0.decode_price,
    };
    let busy = &options.busy_threshold.0;
    SelectConfig {
        mode: options.mode,
        cost,
        temperature: options.temperature,
        busy: BusyThresholds {
            active_decode_blocks: busy.decode_blocks.0,
            active_prefill_tokens: busy.prefill_tokens.0,
            active_prefill_tokens_fraction: busy.prefill_tokens_frac.0,
        },
        slow_start: SlowStart {
            window: options.worker_health.0.slow_start.0,
            ..SlowStart::default()
        },
        preferences: PreferenceWeights::default(),
    }
}

fn pools(options: &RoutingOptions) -> PoolsConfig {
    PoolsConfig {
        remote_prefill_tokens_min: options.remote_prefill_tokens_min,
        ..PoolsConfig::default()
    }
}

fn nats(options: &RoutingOptions) -> Result<Option<NatsServers>, ConfigError> {
    let url = &options.nats_url;
    let access = &options.nats_access;
    let needs_nats = url.is_some() || options.replica_sync || access.is_set();
    needs_nats.then(|| access.servers(url.as_ref())).transpose()
}
