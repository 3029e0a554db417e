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

/// Settings of a [`Router`](super::Router). The defaults are those of the documents.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RouterConfig {
    /// How workers are chosen.
    pub select: SelectConfig,
    /// What of the requests under way is tracked.
    pub active: ActiveConfig,
    /// When requests wait. A router of a library has no threshold by default: its gateway may have a queue.
    pub queue: QueueConfig,
    /// Which workers are left alone.
    pub outliers: OutlierConfig,
    /// How far the index is trusted.
    pub trust: TrustConfig,
    /// Plan which blocks a worker fetches from other workers' agents instead of computing them, and let that count in
    /// its cost. None: plan nothing.
    pub fetch: Option<FetchConfig>,
    /// How long a session prefers the rank that served it last; none: sessions do not count.
    pub session_ttl: Option<Duration>,
    /// Record each decision at the index for this long: for engines that publish no events (120 s in document 004), or for
    /// routers that do not sync. None: record nothing.
    pub placement_ttl: Option<Duration>,
    /// How the router tells replicas of its requests. None: it has no replicas, or they do not sync. With it, call
    /// [`Router::flush_sync`](super::Router::flush_sync) every few milliseconds.
    pub sync: Option<SyncConfig>,
}

/// A rank that can be chosen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RouterWorker {
    /// The rank.
    pub key: WorkerKey,
    /// What its worker states about itself.
    pub profile: WorkerProfile,
    /// LoRA adapters that it has loaded.
    pub adapters: BTreeSet<String>,
    /// Blocks in use, as its engine reports; none if it does not.
    pub active_blocks: Option<u64>,
}

/// What a request sets itself. The default sets nothing.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Hints {
    /// Its mode.
    pub mode: Option<Mode>,
    /// Its weight of overlap against load.
    pub overlap_score_weight: Option<f64>,
    /// Its temperature.
    pub temperature: Option<f64>,
    /// Where it must go.
    pub filter: Filter,
    /// Labels that its worker had better have.
    pub preferred_labels: Vec<PreferredLabel>,
    /// Its session, 1 to 256 bytes: the rank that served the session last is preferred.
    pub session: Option<String>,
    /// The LoRA adapter that it needs: workers that have it loaded are preferred.
    pub adapter: Option<String>,
    /// Tokens of output that the client expects (`osl` of document 004).
    pub expected_output_tokens: Option<u64>,
    /// How many seconds earlier it counts as arrived in the queue.
    pub latency_sensitivity_secs: f64,
    /// Longest wait in the queue; none: as long as the caller waits.
    pub queue_timeout: Option<Duration>,
    /// Its id among the router's requests, 1 to 256 bytes; none: the router makes one up.
    pub request_id: Option<String>,
    /// Whether the decision lists what was known of each rank.
    pub explain: bool,
}

/// Where a request must go. The default allows every rank.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Filter {
    /// Only this one.
    pub pin: Option<Pin>,
    /// Only these workers.
    pub allowed: Option<BTreeSet<WorkerId>>,
    /// None of these workers, as when a request is tried again.
    pub excluded: Option<BTreeSet<WorkerId>>,
    /// Only workers of these roles; of any if there are none.
    pub roles: Vec<Role>,
    /// Only workers with all these labels, by key and value.
    pub labels: Vec<(String, String)>,
    /// Only workers that serve this kind of requests.
    pub model_type: Option<ModelType>,
}

// === impl RouterConfig ===

impl RouterConfig {
    /// The defaults, for a fleet with so many tokens a block.
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

    /// Whether all settings can be used.
    ///
    /// # Errors
    /// If one is out of its bounds.
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
    /// A rank of which nothing else is known.
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
    /// The same request for another worker than this one, which failed it.
    #[must_use]
    pub fn excluding(mut self, worker: &WorkerId) -> Self {
        self.filter.excluded.get_or_insert_default().insert(worker.clone());
        self
    }

    /// Whether all that the request sets itself can be used, as far as the question does not check it.
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
