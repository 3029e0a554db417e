use crate::route::{
    ActiveConfig, ConfigError, Constraints, FetchConfig, LATENCY_SENSITIVITY_SECS_MAX, Mode,
    OutlierConfig, Pin, PreferredLabel, QueueConfig, REQUEST_ID_BYTES_MAX, SelectConfig, Sessions,
    SyncConfig, TrustConfig,
};
use crate::workers::ListedWorker;
use kvasir_proto::convert::{ModelType, Role, WorkerProfile};
use kvasir_proto::types::{WorkerId, WorkerKey};
use std::collections::BTreeSet;
use std::num::NonZeroU32;
use std::time::Duration;

/// Settings of a [`Router`](super::Router), with the documented defaults.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RouterConfig {
    /// How the router chooses workers.
    pub select: SelectConfig,
    /// Which load of active requests is tracked.
    pub active: ActiveConfig,
    /// When requests wait in the queue. In the library there is no threshold by default: the gateway may have its own
    /// queue.
    pub queue: QueueConfig,
    /// Which workers are ejected after failures.
    pub outliers: OutlierConfig,
    /// How far the index's counts are trusted.
    pub trust: TrustConfig,
    /// Plan which blocks a worker fetches from other workers' agents instead of computing them, and include the fetch
    /// in its cost. `None`: no plans.
    pub fetch: Option<FetchConfig>,
    /// How long a session prefers the rank that served it last. `None`: sessions are ignored.
    pub session_ttl: Option<Duration>,
    /// Record each decision at the index for this long. For engines that publish no events (120 s in document 004), or
    /// for routers that do not sync. `None`: record no decisions.
    pub placement_ttl: Option<Duration>,
    /// How the router sends its requests to replicas. `None`: no replicas, or no sync. If set, call
    /// [`Router::flush_sync`](super::Router::flush_sync) every few milliseconds.
    pub sync: Option<SyncConfig>,
}

/// A rank that the router can choose.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RouterWorker {
    /// The rank.
    pub key: WorkerKey,
    /// Profile that the worker published.
    pub profile: WorkerProfile,
    /// LoRA adapters loaded at the worker.
    pub adapters: BTreeSet<String>,
    /// Blocks in use, as the engine reports; `None` without a report.
    pub active_blocks: Option<u64>,
}

/// Settings of one request. The default sets none.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Hints {
    /// Mode for this request.
    pub mode: Option<Mode>,
    /// Weight of overlap against load.
    pub overlap_score_weight: Option<f64>,
    /// Randomness of the choice.
    pub temperature: Option<f64>,
    /// Which ranks may receive the request.
    pub filter: Filter,
    /// Labels that a worker should have; not required.
    pub preferred_labels: Vec<PreferredLabel>,
    /// Session id, 1 to 256 bytes. The rank that served the session last is preferred.
    pub session: Option<String>,
    /// LoRA adapter that the request uses. Workers that have loaded it are preferred.
    pub adapter: Option<String>,
    /// Number of output tokens that the client expects (`osl` of document 004).
    pub expected_output_tokens: Option<u64>,
    /// How many seconds earlier the request counts as arrived in the queue.
    pub latency_sensitivity_secs: f64,
    /// Maximum wait in the queue. `None`: as long as the caller waits.
    pub queue_timeout: Option<Duration>,
    /// Request id, unique in the router, 1 to 256 bytes. `None`: the router generates one.
    pub request_id: Option<String>,
    /// Whether the decision lists the data known of each rank.
    pub explain: bool,
}

/// Which ranks may receive a request. The default allows every rank.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Filter {
    /// Only this worker or rank.
    pub pin: Option<Pin>,
    /// Only these workers.
    pub allowed: Option<BTreeSet<WorkerId>>,
    /// Not these workers, for example when a request is retried.
    pub excluded: Option<BTreeSet<WorkerId>>,
    /// Only workers with a listed role. Empty: any role.
    pub roles: Vec<Role>,
    /// Only workers with all these labels, by key and value.
    pub labels: Vec<(String, String)>,
    /// Only workers that serve this kind of request.
    pub model_type: Option<ModelType>,
}

// === impl RouterConfig ===

impl RouterConfig {
    /// Returns the defaults, for a fleet with this block size in tokens.
    #[must_use]
    pub fn new(block_size: NonZeroU32) -> Self {
        Self {
            select: SelectConfig::default(),
            active: ActiveConfig::new(block_size),
            queue: QueueConfig { threshold: None, ..QueueConfig::default() },
            outliers: OutlierConfig::default(),
            trust: TrustConfig::default(),
            fetch: None,
            session_ttl: None,
            placement_ttl: None,
            sync: None,
        }
    }

    /// Checks all settings.
    ///
    /// # Errors
    /// If a setting is out of range.
    pub fn check(&self) -> Result<(), ConfigError> {
        self.select.check()?;
        self.active.check()?;
        self.queue.check()?;
        self.outliers.check()?;
        self.sync.map_or(Ok(()), |sync| sync.check(self.active.lease))?;
        self.session_ttl.map_or(Ok(()), Sessions::check_ttl)?;
        self.fetch.map_or(Ok(()), |fetch| fetch.check())?;
        self.trust.check()
    }
}

// === impl RouterWorker ===

impl RouterWorker {
    /// A rank without profile, adapters or reported load.
    #[must_use]
    pub fn new(key: WorkerKey) -> Self {
        Self {
            key,
            profile: WorkerProfile::default(),
            adapters: BTreeSet::new(),
            active_blocks: None,
        }
    }

    /// The ranks of a worker that the index lists.
    pub fn of(listed: &ListedWorker) -> impl Iterator<Item = Self> {
        listed.ranks.iter().map(|rank| Self {
            key: WorkerKey { worker: listed.worker.clone(), rank: *rank },
            profile: listed.profile.clone(),
            adapters: listed.adapters.clone(),
            active_blocks: None,
        })
    }
}

// === impl Hints ===

impl Hints {
    /// The hints, but excluding a worker that failed the request.
    #[must_use]
    pub fn excluding(mut self, worker: &WorkerId) -> Self {
        self.filter.excluded.get_or_insert_default().insert(worker.clone());
        self
    }

    /// Checks the hints that the question does not check.
    pub(super) fn check(&self) -> Result<(), ConfigError> {
        self.session.as_deref().map_or(Ok(()), Sessions::check_id)?;
        let ids = self.request_id.as_deref().map(str::len);
        if ids.is_some_and(|bytes| !(1..=REQUEST_ID_BYTES_MAX).contains(&bytes)) {
            let setting = "request id";
            let problem = "must have 1 to 256 bytes";
            return Err(ConfigError { setting, problem });
        }
        let is_good = (0.0..=LATENCY_SENSITIVITY_SECS_MAX).contains(&self.latency_sensitivity_secs);
        let setting = "latency sensitivity";
        let problem = "must be between 0 and 3600 seconds";
        if is_good { Ok(()) } else { Err(ConfigError { setting, problem }) }
    }
}

// === impl Filter ===

impl Filter {
    /// Returns the constraints that a candidate must satisfy.
    pub(super) fn constraints(&self) -> Constraints<'_> {
        Constraints {
            pin: self.pin.as_ref(),
            allowed: self.allowed.as_ref(),
            excluded: self.excluded.as_ref(),
            roles: &self.roles,
            labels: &self.labels,
            model_type: self.model_type,
        }
    }
}
