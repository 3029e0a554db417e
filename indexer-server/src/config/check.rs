use super::broker::broker;
use super::index_shards::SHARD_BYTES_MIN;
use super::shard::{MapSource, Sharding, sharding};
use super::worker::registrations;
use super::{ConfigError, Options, SpeculativeBlocks};
use crate::broker::BrokerConfig;
use crate::grpc::{ENDPOINT_PLACES_MAX, EndpointRules, GrpcConfig, Place};
use crate::ingest::IngestConfig;
use crate::partitions::{IndexConfig, SpeculationConfig};
use crate::siblings::SIBLINGS_MAX;
use crate::snapshot::CheckpointConfig;
use kvasir_discovery::EngineSource;
use kvasir_process::http::HttpConfig;
use kvasir_process::options::{ProcessConfig, count, dialled, positive};
use kvasir_process::port::{CONNECTION_CALLS_MAX, PortConfig};
use kvasir_process::shares::LargestShare;
use kvasir_process::telemetry::LogConfig;
use kvasir_process::text::ByteCount;
use kvasir_proto::convert::Registration;
use kvasir_proto::limits::{GRPC_MESSAGE_BYTES_MAX, QUERY_BLOCKS_MAX};
use kvasir_tls::Dialer;
use std::num::NonZeroUsize;
use std::thread;
use std::time::Duration;

/// Validated options, by module.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// Content and format of the log, and target of spans.
    pub log: LogConfig,
    /// Configuration of the index.
    pub index: IndexConfig,
    /// Limits of the speculative blocks.
    pub speculation: SpeculationConfig,
    /// Folder and interval of checkpoints. `None`: no checkpoints.
    pub checkpoints: Option<CheckpointConfig>,
    /// Configuration of ingest.
    pub ingest: IngestConfig,
    /// The gRPC port.
    pub grpc: GrpcConfig,
    /// The HTTP side port.
    pub http: HttpConfig,
    /// Connects to siblings and agents.
    pub dialer: Dialer,
    /// Workers to register at start, if they belong to this server's shard.
    pub workers: Vec<Registration>,
    /// List of engines that the server follows.
    pub engines_from: Option<EngineSource>,
    /// The NATS broker, if one is configured.
    pub broker: Option<BrokerConfig>,
    /// Source of the map of shards. `None`: the map never changes.
    pub shard_map: Option<MapSource>,
    /// URLs of other replicas of the same shard.
    pub siblings: Vec<String>,
    /// Time limit for a graceful stop.
    pub drain_timeout: Duration,
}

impl Config {
    /// Validates all options and converts them to the configuration.
    ///
    /// # Errors
    /// If an option is invalid. The error names the option.
    pub fn check(options: &Options) -> Result<Self, ConfigError> {
        let process = options.process.check()?;
        let Sharding { shard, source } = sharding(options)?;
        let timing = &options.timing.0;
        Ok(Self {
            index: index(options)?,
            speculation: speculation(options)?,
            checkpoints: checkpoints(options)?,
            ingest: IngestConfig {
                loss_policy: options.loss_policy,
                degraded_ttl: positive("timing: degraded-ttl", timing.degraded_ttl)?,
                worker_timeout: positive("worker-timeout", options.worker_timeout)?,
                pool_source_timeout: positive(
                    "timing: pool-source-timeout",
                    timing.pool_source_timeout,
                )?,
                probe_interval: positive("timing: probe-interval", timing.probe_interval)?,
                replay_concurrency: REPLAY_CONCURRENCY,
                dump_concurrency: DUMP_CONCURRENCY,
                shard,
            },
            grpc: GrpcConfig {
                listen: Some(process.listen),
                endpoints: endpoints(options, &process)?,
                guard: process.guard,
                port: PortConfig {
                    max_in_flight: count("limits: in-flight", options.limits.0.in_flight)?,
                    max_connections: count("limits: connections", options.limits.0.connections)?,
                    message_bytes_max: GRPC_MESSAGE_BYTES_MAX,
                    connection_calls_max: CONNECTION_CALLS_MAX,
                    connection_asking_streams_max: CONNECTION_ASKING_STREAMS_MAX,
                },
            },
            http: process.http,
            workers: registrations(&options.worker)?,
            engines_from: engines_from(options)?,
            broker: broker(options)?,
            shard_map: source,
            siblings: siblings(options, &process.dialer)?,
            dialer: process.dialer,
            drain_timeout: process.drain_timeout,
            log: process.log,
        })
    }
}

fn engines_from(options: &Options) -> Result<Option<EngineSource>, ConfigError> {
    let source = options.engines_from.as_deref().map(str::parse).transpose();
    source.map_err(|why| ConfigError::invalid("engines-from", why))
}

/// Reads the places where endpoints of registered workers may be.
fn endpoints(options: &Options, process: &ProcessConfig) -> Result<EndpointRules, ConfigError> {
    const FIELD: &str = "endpoint-places";
    let given = &options.endpoint_places;
    if given.len() > ENDPOINT_PLACES_MAX {
        let why = format!("names {} places, the limit is {ENDPOINT_PLACES_MAX}", given.len());
        return Err(ConfigError::invalid(FIELD, why));
    }
    let places = given.iter().map(|text| text.parse::<Place>());
    let places = places.collect::<Result<_, _>>();
    Ok(EndpointRules {
        places: places.map_err(|why| ConfigError::invalid(FIELD, why))?,
        is_local: process.listen.ip().is_loopback(),
        has_identities: !process.guard.access.is_open(),
    })
}

/// Maximum number of concurrent replays, over all engines.
const REPLAY_CONCURRENCY: usize = 8;

/// Maximum number of concurrent reads from workers' local indexers: dumps and event ranges.
const DUMP_CONCURRENCY: usize = 8;

/// Maximum concurrent query streams per connection: a router needs one, or one per core.
const CONNECTION_ASKING_STREAMS_MAX: usize = 32;

/// Maximum of `max` in `--speculative-blocks`: block counts stay far below 32 bits. The minimum is the longest prompt.
const SPECULATIVE_BLOCKS_MAX: usize = 1 << 24;

/// Reads the limits of speculative blocks.
fn speculation(options: &Options) -> Result<SpeculationConfig, ConfigError> {
    let SpeculativeBlocks { max: blocks_max, keep_ratio: ratio } = options.speculative_blocks.0;
    let min = QUERY_BLOCKS_MAX;
    let max = SPECULATIVE_BLOCKS_MAX;
    if !(min..=max).contains(&blocks_max) {
        let why = format!("is {blocks_max}, must be {min} to {max}");
        return Err(ConfigError::invalid("speculative-blocks: max", why));
    }
    if !(0.0..=1.0).contains(&ratio) {
        let why = format!("is {ratio}, must be 0 to 1");
        return Err(ConfigError::invalid("speculative-blocks: keep-ratio", why));
    }
    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "below 2^24 and not negative: exact"
    )]
    let blocks_kept = (blocks_max as f64 * ratio) as usize;
    Ok(SpeculationConfig { blocks_max, blocks_kept })
}

fn checkpoints(options: &Options) -> Result<Option<CheckpointConfig>, ConfigError> {
    let interval = positive("checkpoint-interval", options.checkpoint_interval)?;
    let folder = options.checkpoint_dir.clone();
    if folder.as_ref().is_some_and(|folder| folder.as_os_str().is_empty()) {
        return Err(ConfigError::invalid("checkpoint-dir", "must name a folder"));
    }
    Ok(folder.map(|folder| CheckpointConfig { folder, interval }))
}

/// Checks the URLs of the siblings, each given once.
fn siblings(options: &Options, dialer: &Dialer) -> Result<Vec<String>, ConfigError> {
    const FIELD: &str = "siblings";
    let given = &options.siblings;
    if given.len() > SIBLINGS_MAX {
        let why = format!("names {} servers, the limit is {SIBLINGS_MAX}", given.len());
        return Err(ConfigError::invalid(FIELD, why));
    }
    let mut urls = Vec::with_capacity(given.len());
    for text in given {
        let url = dialled(FIELD, text, dialer)?;
        if urls.contains(&url) {
            return Err(ConfigError::invalid(FIELD, format!("{url:?} is given twice")));
        }
        urls.push(url);
    }
    Ok(urls)
}

/// Inverse fraction (1/2) of the byte limit for data that eviction cannot free: workers, sources, ranks and partitions.
const FIXED_FRACTION: usize = 2;

/// Checks the number of shards of the index, and its memory limits.
fn index(options: &Options) -> Result<IndexConfig, ConfigError> {
    let bytes_max = options.max_index_bytes.map(|ByteCount(bytes)| bytes);
    let cores = thread::available_parallelism().map_or(1, NonZeroUsize::get);
    let shards = options.index_shards.count(cores, bytes_max)?;
    let least = shards.get() * SHARD_BYTES_MIN;
    if let Some(bytes) = options.max_index_bytes.filter(|bytes| bytes.0 < least) {
        let least = ByteCount(least);
        let why = format!(
            "is {bytes}, must be {least} or more: 1MiB a shard, of which there are {shards}"
        );
        return Err(ConfigError::invalid("max-index-bytes", why));
    }
    let fixed_bytes_max = bytes_max.map(|bytes| bytes / FIXED_FRACTION);
    let tenant_share = LargestShare::new(options.tenant_share).ok_or_else(|| {
        let why = format!("is {}, must be 0.001 to 1", options.tenant_share);
        ConfigError::invalid("tenant-share", why)
    })?;
    Ok(IndexConfig { shards, bytes_max, fixed_bytes_max, tenant_share })
}
