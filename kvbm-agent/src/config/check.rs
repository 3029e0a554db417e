use super::indexers::{check_pool_indexers, checked, out_of_reach, unpublished};
use super::media::{connector_chunks, medium_ttls};
use super::{Options, SourceSpec};
use crate::agent::{AgentConfig, INDEXERS_MAX, POOL_INDEXERS_MAX, SourcesConfig};
use crate::blocks::BlocksConfig;
use crate::broker::BrokerConfig;
use crate::ingest::IngestConfig;
use crate::load::scrape::{ScrapeConfig, ScrapedEngine};
use crate::load::{LoadConfig, LoadError, Totals};
use crate::relay::{RelayConfig, RelayError};
use crate::service::ServiceConfig;
use kvasir_feed::consolidate::SOURCES_MAX;
use kvasir_feed::feed::{SourceConfig, new_incarnation};
use kvasir_feed::hub::{BATCH_INTERVAL_MAX, BatchingConfig, HubConfig};
use kvasir_feed::journal::JournalConfig;
use kvasir_process::config::ConfigError;
use kvasir_process::http::HttpConfig;
use kvasir_process::options::{ProcessConfig, positive, target};
use kvasir_process::telemetry::LogConfig;
use kvasir_process::text::{ByteCount, Span};
use kvasir_proto::convert::{ConvertError, LOCAL_INDEXER_BY_BROKER, Registration, WorkerProfile};
use kvasir_proto::limits::{BATCH_WIRE_BYTES_MAX, LEASE_MS_MAX, LEASE_MS_MIN, WORKER_LABELS_MAX};
use kvasir_proto::pb;
use kvasir_proto::target::is_tls;
use kvasir_proto::types::{CopyMode, EngineKind, NameError, WorkerId};
use std::collections::BTreeSet;
use std::fmt;
use std::time::Duration;

/// Worker label with the address where other agents fetch its blocks.
const PEER_LABEL: &str = "blocks-peer";
/// Worker label with the bytes per block.
const BLOCK_BYTES_LABEL: &str = "blocks-bytes";
/// Worker label with the blocks' fingerprint. Routers plan fetches between workers with the same value.
const FINGERPRINT_LABEL: &str = "blocks-fingerprint";
/// Number of heartbeats to indexes during a lease.
const HEARTBEATS_PER_LEASE: u32 = 12;
/// Maximum time between two heartbeats.
const HEARTBEAT_INTERVAL_MAX: Duration = Duration::from_secs(5);
/// Name of the agent's stream.
const SOURCE: &str = "agent";

/// Checked options.
#[derive(Debug, Clone)]
pub struct Config {
    /// Log format and filter, and the endpoint for spans.
    pub log: LogConfig,
    /// Address and access control of the HTTP side port.
    pub http: HttpConfig,
    /// Configuration of the agent.
    pub agent: AgentConfig,
    /// Maximum time for a graceful shutdown.
    pub drain_timeout: Duration,
    /// Warnings about suspicious options, for the log.
    pub warnings: Vec<String>,
}

impl Config {
    /// Checks options.
    ///
    /// # Errors
    /// If an option is missing or cannot be used. The error names it.
    pub fn check(options: &Options) -> Result<Self, ConfigError> {
        let process = options.process.check()?;
        let mut registration = registration(options)?;
        let of_blocks = blocks(options, &registration, &process)?;
        add_block_labels(&mut registration, of_blocks.as_ref());
        let volume = pool(of_blocks.as_ref())?;
        let engine_pool = engine_pool(options, volume.as_ref())?;
        registration.pools.extend(volume.into_iter().chain(engine_pool.clone()));
        let indexers = checked("indexers", &options.indexers, INDEXERS_MAX, &process.dialer)?;
        let pool_indexers =
            checked("pool-indexers", &options.pool_indexers, POOL_INDEXERS_MAX, &process.dialer)?;
        check_pool_indexers(&registration, &indexers, &pool_indexers)?;
        let zmq = options.zmq.0.check()?;
        let nats = options.nats.check(options.blocks.needs_nats())?;
        if indexers.is_empty() && nats.is_none() && zmq.is_none() {
            let why =
                "is empty, so the agent has no index to publish to: set indexers, nats-url or zmq";
            return Err(ConfigError::invalid("indexers", why));
        }
        let warnings = out_of_reach(process.listen, &registration, &indexers).into_iter();
        let warnings = warnings.chain(unpublished(&registration, &indexers));
        let warnings = warnings.chain(without_replay(options)).collect();
        let copy_mode = registration.copy_mode;
        let by_broker = || Registration {
            local_indexer: Some(LOCAL_INDEXER_BY_BROKER.to_owned()),
            ..registration.clone()
        };
        let broker = nats.map(|(servers, delivery)| BrokerConfig {
            servers,
            delivery,
            registration: by_broker(),
            deregister: options.deregister,
        });
        let agent = AgentConfig {
            source: SourceConfig {
                address: registration.address(),
                name: SOURCE.to_owned(),
                block_size: registration.block_size,
                incarnation: new_incarnation(),
                first_sequence: 0,
                journal: journal(options, of_blocks.as_ref(), copy_mode)?,
            },
            journal_dir: options.journal_dir.clone(),
            sources: sources(options, &registration, of_blocks.as_ref())?,
            blocks: of_blocks,
            indexers,
            engine_pool,
            pool_indexers,
            dialer: process.dialer,
            broker,
            zmq,
            loads: loads(options)?,
            registration: Some(registration),
            deregister: options.deregister,
            heartbeat_interval: heartbeat_interval(options.lease),
            listen: Some(process.listen),
            guard: process.guard,
            service: ServiceConfig::DEFAULT,
        };
        Ok(Self {
            log: process.log,
            http: process.http,
            agent,
            drain_timeout: process.drain_timeout,
            warnings,
        })
    }
}

/// Builds the worker's registration from options, and checks it like an index does.
fn registration(options: &Options) -> Result<Registration, ConfigError> {
    let required = |field: &'static str| {
        move || ConfigError::invalid(field, "is required: nothing is assumed of the engine")
    };
    let mut labels = Vec::with_capacity(options.label.len());
    for label in &options.label {
        let pair = label.split_once('=');
        let (key, value) = pair
            .ok_or_else(|| ConfigError::invalid("label", format!("{label:?} is no key=value")))?;
        labels.push(pb::Label { key: key.to_owned(), value: value.to_owned() });
    }
    let profile = pb::WorkerProfile {
        total_kv_blocks: options.capacity.0.total_kv_blocks.0,
        max_num_batched_tokens: options.capacity.0.max_num_batched_tokens.0,
        labels,
        ..Default::default()
    };
    let refused = |ConvertError { field, problem }| {
        // Fields of the contract are named like the options, except for their group and the dash.
        let field = field.trim_start_matches("profile.").replace("labels", "label");
        let field = field
            .replace("lora_names", "lora")
            .replace("connector_chunks", "connector-chunk")
            .replace("engine_facts.", "engine-facts: ")
            .replace("local_indexer_endpoint", "advertise")
            .replace('_', "-");
        ConfigError::invalid(field, problem.to_string())
    };
    let request = pb::RegisterWorkerRequest {
        worker_id: options.worker_id.clone().ok_or_else(required("worker-id"))?,
        model: options.model.clone().ok_or_else(required("model"))?,
        tenant: options.tenant.clone(),
        block_size: options.block_size.ok_or_else(required("block-size"))?,
        engine: options.engine.message().into(),
        lease_ms: lease_ms(options)?,
        local_indexer_endpoint: advertised(options)?.unwrap_or_default(),
        lora_names: lora_names(&options.lora)?,
        connector_chunks: connector_chunks(options)?,
        profile: Some(profile),
        engine_facts: Some(options.engine_facts.0.message()),
        ..Default::default()
    };
    let registration = Registration::try_from(request).map_err(refused)?;
    let profile = WorkerProfile {
        role: options.role.unwrap_or_default(),
        model_types: options.model_types.clone().unwrap_or_default(),
        image_tokens: options.engine_facts.0.image_tokens.0,
        ..registration.profile.clone()
    };
    let copy_mode = if options.consolidate { CopyMode::Set } else { registration.copy_mode };
    Ok(Registration { profile, copy_mode, ..registration })
}

/// Reads the LoRA adapters: pairs `number=name`.
fn lora_names(lora: &[String]) -> Result<Vec<pb::LoraName>, ConfigError> {
    let read = |text: &String| {
        let (id, name) = text.split_once('=')?;
        Some(pb::LoraName { id: id.parse().ok()?, name: name.to_owned() })
    };
    let names = lora.iter().map(|text| {
        let why = || ConfigError::invalid("lora", format!("{text:?} is no number=name"));
        read(text).ok_or_else(why)
    });
    names.collect()
}

fn lease_ms(options: &Options) -> Result<u32, ConfigError> {
    let millis = options.lease.millis_within(LEASE_MS_MIN..=LEASE_MS_MAX);
    millis.map_err(|why| ConfigError::invalid("lease", why))
}

/// Returns the URL at which indexes reach the agent, or `None` if `advertise` is unset. Fails if the URL is required
/// but missing, or its scheme contradicts the port's TLS.
fn advertised(options: &Options) -> Result<Option<String>, ConfigError> {
    let Some(url) = &options.advertise else {
        if options.process.listen.ip().is_unspecified() && !options.indexers.is_empty() {
            let why = "is required if listen is every address: set a URL at which indexes reach the agent";
            return Err(ConfigError::invalid("advertise", why));
        }
        return Ok(None);
    };
    // The ports have TLS if there is a certificate. This decides the scheme if none is given.
    let has_tls = options.process.entry.tls_cert.is_some();
    let url = if has_tls && !url.contains("://") { &format!("https://{url}") } else { url };
    let url = target("advertise", url)?;
    if is_tls(&url) != has_tls {
        let why = if has_tls {
            "write https://, for tls-cert is set"
        } else {
            "set tls-cert, or write http://"
        };
        return Err(ConfigError::invalid(
            "advertise",
            format!("{url:?} differs from the scheme of the agent's port: {why}"),
        ));
    }
    Ok(Some(url))
}

/// Checks the relayed engines and the hub's settings. Fails if an engine is given twice, or there are more than
/// [`SOURCES_MAX`].
fn sources(
    options: &Options,
    registration: &Registration,
    of_blocks: Option<&BlocksConfig>,
) -> Result<SourcesConfig, ConfigError> {
    let medium_ttls = medium_ttls(options)?;
    let relays = options.source.iter();
    let relays = relays.map(|spec| relay(options, registration, spec, &medium_ttls));
    let relays = relays.collect::<Result<Vec<_>, _>>()?;
    let mut seen = BTreeSet::new();
    if let Some(twice) = relays.iter().find(|relay| !seen.insert(&relay.endpoint)) {
        let why = format!("{:?} is given twice: each engine is one source", twice.endpoint);
        return Err(ConfigError::invalid("source endpoint", why));
    }
    if relays.len() > SOURCES_MAX.into() {
        let why = format!("{} are too many, the limit is {SOURCES_MAX}", relays.len());
        return Err(ConfigError::invalid("source", why));
    }
    let hub = HubConfig {
        sources_max: SOURCES_MAX,
        consolidate: options.consolidate,
        names_max: held_blocks_max(of_blocks),
        batching: batching(options)?,
    };
    debug_assert!(!options.consolidate || registration.copy_mode == CopyMode::Set);
    Ok(SourcesConfig { hub, relays, ingest: Some(IngestConfig::DEFAULT) })
}

/// Adds labels that show routers and engines where to fetch the worker's blocks, if there is a block manager. Labels of
/// the operator take precedence, and the number of labels is limited.
fn add_block_labels(registration: &mut Registration, blocks: Option<&BlocksConfig>) {
    let Some(blocks) = blocks else { return };
    let address = blocks.peer_address().map(str::to_owned);
    let bytes = Some(blocks.block_bytes.to_string());
    // As many digits as routers compare.
    let fingerprint = blocks.fingerprint().to_string().get(..16).map(str::to_owned);
    let labels = &mut registration.profile.labels;
    let all = [(PEER_LABEL, address), (BLOCK_BYTES_LABEL, bytes), (FINGERPRINT_LABEL, fingerprint)];
    for (key, value) in all {
        if let Some(value) = value
            && labels.len() < WORKER_LABELS_MAX
        {
            labels.entry(key.to_owned()).or_insert(value);
        }
    }
}

/// Pool of the block manager's volume; `None` without a volume.
fn pool(blocks: Option<&BlocksConfig>) -> Result<Option<WorkerId>, ConfigError> {
    let refused = |error: NameError| {
        let why = format!("{error}: give the volume a name");
        ConfigError::invalid("blocks-volume name", why)
    };
    blocks.map_or(Ok(None), BlocksConfig::pool).map_err(refused)
}

/// Returns the pool id of the store that the engines of several workers share, or `None` if `engine-pool` is unset.
/// Fails without a source, or if the id is already used.
fn engine_pool(
    options: &Options,
    volume: Option<&WorkerId>,
) -> Result<Option<WorkerId>, ConfigError> {
    const FIELD: &str = "engine-pool";
    let Some(id) = &options.engine_pool else { return Ok(None) };
    if options.source.is_empty() {
        let why =
            "needs a source: only an engine's own publisher announces blocks of a shared store";
        return Err(ConfigError::invalid(FIELD, why));
    }
    let id = WorkerId::new(id).map_err(|error| ConfigError::invalid(FIELD, error.to_string()))?;
    let is_worker = options.worker_id.as_deref() == Some(id.as_str());
    if is_worker || volume == Some(&id) {
        let other = if is_worker { "worker-id" } else { "the pool of blocks-volume" };
        let why = format!("is also {other}: the index needs an id of its own for the store");
        return Err(ConfigError::invalid(FIELD, why));
    }
    Ok(Some(id))
}

/// Returns a warning if engines share a pool and a source has no replay socket: its reconnects may empty the pool.
fn without_replay(options: &Options) -> Option<String> {
    options.engine_pool.as_ref()?;
    let source = options.source.iter().find(|source| source.replay.is_none())?;
    let endpoint = &source.endpoint;
    Some(format!(
        "engine-pool: source {endpoint} has no replay: after a reconnect events may be missing, and the agent then drops \
         what it has announced for the pool. Add replay= if the engine has a replay socket"
    ))
}

/// Checks the options of the block manager, which counts as a source. Returns `None` if it is off.
fn blocks(
    options: &Options,
    registration: &Registration,
    process: &ProcessConfig,
) -> Result<Option<BlocksConfig>, ConfigError> {
    let address = registration.address();
    let process = (process, options.process.insecure);
    let checked = options.blocks.check(&address, registration.block_size, process)?;
    let Some(blocks) = checked else { return Ok(None) };
    let sources = options.source.len();
    if sources > 0 && !options.consolidate {
        let why = "is required with blocks-host and source: engine and block manager publish for one rank";
        return Err(ConfigError::invalid("consolidate", why));
    }
    if sources >= SOURCES_MAX.into() {
        let why =
            format!("{sources} and the block manager are too many, the limit is {SOURCES_MAX}");
        return Err(ConfigError::invalid("source", why));
    }
    Ok(Some(blocks))
}

/// Checks the interval for batching. Fails if it exceeds its limit, or is set together with `journal-dir`.
fn batching(options: &Options) -> Result<BatchingConfig, ConfigError> {
    let Span(interval) = options.batch_interval;
    if interval > BATCH_INTERVAL_MAX {
        let given = options.batch_interval;
        let limit = Span(BATCH_INTERVAL_MAX);
        let why = format!("is {given}, the limit is {limit}");
        return Err(ConfigError::invalid("batch-interval", why));
    }
    if !interval.is_zero() && options.journal_dir.is_some() {
        let why = "does not go with journal-dir: waiting blocks are not on disk; remove one of the two options";
        return Err(ConfigError::invalid("batch-interval", why));
    }
    Ok(BatchingConfig { interval, ..BatchingConfig::DEFAULT })
}

/// Builds the configuration of one relayed engine. Fails if an endpoint cannot be used.
fn relay(
    options: &Options,
    registration: &Registration,
    spec: &SourceSpec,
    medium_ttls: &[(String, Duration)],
) -> Result<RelayConfig, ConfigError> {
    let relay = RelayConfig {
        bind: spec.bind,
        replay: spec.replay.clone(),
        topic: spec.topic.clone(),
        rank: spec.dp_rank,
        lora_names: registration.lora_names.clone().into_iter().collect(),
        medium_ttls: medium_ttls.to_vec(),
        connector_chunks: registration.connector_chunks.clone().into_iter().collect(),
        worker_timeout: positive("worker-timeout", options.worker_timeout)?,
        ..RelayConfig::new(options.engine, &spec.endpoint)
    };
    match relay.check() {
        Err(RelayError::Endpoint { field, error }) => {
            Err(ConfigError::invalid(format!("source {field}"), error.to_string()))
        }
        Err(error @ RelayError::Hub(_)) => Err(ConfigError::invalid("source", error.to_string())),
        Ok(()) => Ok(relay),
    }
}

/// Builds the limits of the journal from `journal-bytes`. Fails if one batch may not fit.
fn journal(
    options: &Options,
    of_blocks: Option<&BlocksConfig>,
    copy_mode: CopyMode,
) -> Result<JournalConfig, ConfigError> {
    let default = JournalConfig::DEFAULT;
    let ByteCount(bytes_max) = options.journal_bytes;
    if bytes_max < BATCH_WIRE_BYTES_MAX {
        let given = options.journal_bytes;
        let min = ByteCount(BATCH_WIRE_BYTES_MAX);
        let why =
            format!("is {given}, must be {min} or more, which is the maximum size of one batch");
        return Err(ConfigError::invalid("journal-bytes", why));
    }
    // A larger journal may have more batches, of the same average size.
    let batches_max = bytes_max / (default.bytes_max / default.batches_max);
    Ok(JournalConfig {
        copy_mode,
        batches_max: batches_max.max(default.batches_max),
        bytes_max,
        held_blocks_max: held_blocks_max(of_blocks),
    })
}

/// Maximum number of tracked blocks: an engine's blocks, and all slots of the block manager's tiers.
fn held_blocks_max(of_blocks: Option<&BlocksConfig>) -> usize {
    let slots = of_blocks.map_or(0, BlocksConfig::slots);
    JournalConfig::DEFAULT.held_blocks_max.saturating_add(slots)
}

/// Checks how the worker's load is read: from the engine's metrics at `metrics-url`, or only by reports.
fn loads(options: &Options) -> Result<LoadConfig, ConfigError> {
    let capacity = &options.capacity.0;
    let totals = Totals {
        request_slots: capacity.request_total_slots.0,
        kv_blocks: capacity.total_kv_blocks.0,
    };
    let refused = |why: &dyn fmt::Display| ConfigError::invalid("metrics-url", why.to_string());
    let scrape = |url: &String| {
        let engine = match options.engine {
            EngineKind::Vllm => ScrapedEngine::Vllm,
            EngineKind::Sglang => ScrapedEngine::Sglang,
            other @ (EngineKind::Trtllm | EngineKind::Custom) => {
                let why = format!("engine is {other}: only metrics of vllm and sglang are known");
                return Err(refused(&why));
            }
        };
        let scrape = ScrapeConfig::new(url, engine);
        match scrape.check() {
            Ok(()) => Ok(scrape),
            Err(LoadError::Url(error)) => Err(refused(&error)),
            Err(error) => Err(refused(&error)),
        }
    };
    let scrape = options.metrics_url.as_ref().map(scrape).transpose()?;
    Ok(LoadConfig { scrape, totals, ..LoadConfig::DEFAULT })
}

/// Time between two heartbeats: a lease outlives some lost ones.
fn heartbeat_interval(lease: Span) -> Duration {
    (lease.0 / HEARTBEATS_PER_LEASE).min(HEARTBEAT_INTERVAL_MAX)
}
