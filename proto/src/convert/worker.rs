use super::chunk::{Chunks, read_connector_chunks};
use super::shared::{
    check_block_size, check_count, check_hash_scheme, check_name, check_range, check_required_name,
    check_text, read_copy_mode,
};
use super::{ConvertError, ImageTokens, Problem, WorkerProfile, facts, pool};
use crate::limits::{
    LEASE_MS_MAX, LEASE_MS_MIN, MEDIUM_TTL_MS_MAX, MEDIUM_TTL_MS_MIN, NAME_BYTES_MAX,
    WORKER_ENDPOINTS_MAX, WORKER_LORA_NAMES_MAX, WORKER_MEDIUM_TTLS_MAX,
};
use crate::pb;
use crate::target::read_target;
use crate::types::{
    CopyMode, DpRank, EngineFacts, EngineKind, HolderKind, LossPolicy, PartitionKey, WorkerId,
};
use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

impl EngineKind {
    /// The value on the wire.
    #[must_use]
    pub const fn message(self) -> pb::Engine {
        match self {
            Self::Vllm => pb::Engine::Vllm,
            Self::Sglang => pb::Engine::Sglang,
            Self::Trtllm => pb::Engine::Trtllm,
            Self::Custom => pb::Engine::Custom,
        }
    }
}

/// Sockets of one engine rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EndpointSpec {
    /// The engine's PUB socket. With `bind`, the local address to which the engine connects.
    pub endpoint: String,
    /// The engine's replay socket.
    pub replay: Option<String>,
    /// Topic prefix to subscribe to.
    pub topic: String,
    /// Listen instead of connecting.
    pub bind: bool,
    /// Rank of batches that do not state one.
    pub rank: DpRank,
}

impl fmt::Display for EndpointSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (rank {}", self.endpoint, self.rank)?;
        if let Some(replay) = &self.replay {
            write!(f, ", replay {replay}")?;
        }
        if !self.topic.is_empty() {
            write!(f, ", topic {:?}", self.topic)?;
        }
        f.write_str(if self.bind { ", bind)" } else { ")" })
    }
}

/// A checked `RegisterWorkerRequest`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Registration {
    /// The worker.
    pub worker: WorkerId,
    /// Partition of the worker.
    pub partition: PartitionKey,
    /// Tokens per block.
    pub block_size: u32,
    /// Engine of the worker.
    pub engine: EngineKind,
    /// Sockets of the worker; each `endpoint` appears once.
    pub endpoints: Vec<EndpointSpec>,
    /// How repeated announcements count.
    pub copy_mode: CopyMode,
    /// What to do after a loss of events; none for the server's default.
    pub loss_policy: Option<LossPolicy>,
    /// Names of the LoRA adapters that the engine announces by number.
    pub lora_names: BTreeMap<u64, String>,
    /// Time to live of blocks on a medium after their last announcement, by the medium's name in upper case. Only with
    /// `endpoints`.
    pub medium_ttls: BTreeMap<String, Duration>,
    /// Blocks per chunk of a connector that loads only complete chunks, by the medium's name in upper case. Empty for a
    /// pool.
    pub connector_chunks: BTreeMap<String, u32>,
    /// URL of the agent that supplies batches missing from publishers' streams.
    pub local_indexer: Option<String>,
    /// Time after which a silent worker is removed.
    pub lease: Option<Duration>,
    /// Facts about the worker for routers.
    pub profile: WorkerProfile,
    /// Whether it is a worker or a pool.
    pub kind: HolderKind,
    /// Pools from which the worker can load blocks, in order, each once. Empty for a pool.
    pub pools: Vec<WorkerId>,
    /// Facts about the engine that its events do not state.
    pub facts: EngineFacts,
}

impl Registration {
    /// The form of image tokens at the worker's engine: the stated form, else the form of the engine's newest release.
    #[must_use]
    pub fn image_tokens(&self) -> ImageTokens {
        let of_engine = match self.engine {
            EngineKind::Sglang => ImageTokens::Sglang62Bit,
            EngineKind::Vllm | EngineKind::Trtllm | EngineKind::Custom => ImageTokens::Identifier,
        };
        self.profile.image_tokens.unwrap_or(of_engine)
    }

    /// Address of the registered worker.
    #[must_use]
    pub fn address(&self) -> WorkerAddress {
        WorkerAddress { partition: self.partition.clone(), worker: self.worker.clone() }
    }

    /// The first field in which two registrations of one worker differ, with both values as text. For a list, the first
    /// entries that differ.
    #[must_use]
    pub fn difference(&self, other: &Self) -> Option<(&'static str, String, String)> {
        let both = |field, mine: &dyn fmt::Display, theirs: &dyn fmt::Display| {
            Some((field, mine.to_string(), theirs.to_string()))
        };
        if self.kind != other.kind {
            return both("kind", &self.kind, &other.kind);
        }
        if self.block_size != other.block_size {
            return both("block_size", &self.block_size, &other.block_size);
        }
        if self.engine != other.engine {
            return both("engine", &self.engine, &other.engine);
        }
        for index in 0..self.endpoints.len().max(other.endpoints.len()) {
            let mine = self.endpoints.get(index);
            let theirs = other.endpoints.get(index);
            if mine != theirs {
                return both("endpoints", &OrNone(mine), &OrNone(theirs));
            }
        }
        if self.copy_mode != other.copy_mode {
            return both("copy_mode", &self.copy_mode, &other.copy_mode);
        }
        if self.loss_policy != other.loss_policy {
            let words = |policy: Option<LossPolicy>| {
                policy.map_or_else(|| "the server's default".to_owned(), |at| at.to_string())
            };
            return both("loss_policy", &words(self.loss_policy), &words(other.loss_policy));
        }
        if self.local_indexer != other.local_indexer {
            let mine = self.local_indexer.as_ref();
            let theirs = other.local_indexer.as_ref();
            return both("local_indexer_endpoint", &OrNone(mine), &OrNone(theirs));
        }
        if self.lease != other.lease {
            let words = |lease: Option<Duration>| OrNone(lease.map(|lease| lease.as_millis()));
            return both("lease_ms", &words(self.lease), &words(other.lease));
        }
        if let Some(difference) = self.profile.difference(&other.profile) {
            return Some(difference);
        }
        if self.medium_ttls != other.medium_ttls {
            return both("medium_ttls", &Ttls(&self.medium_ttls), &Ttls(&other.medium_ttls));
        }
        if self.connector_chunks != other.connector_chunks {
            let mine = Chunks(&self.connector_chunks);
            let theirs = Chunks(&other.connector_chunks);
            return both("connector_chunks", &mine, &theirs);
        }
        if let Some(difference) = facts::difference(&self.facts, &other.facts) {
            return Some(difference);
        }
        if self.pools != other.pools {
            return both("pool_ids", &pool::Ids(&self.pools), &pool::Ids(&other.pools));
        }
        let mut ids = self.lora_names.keys().chain(other.lora_names.keys());
        let id = ids.find(|id| self.lora_names.get(id) != other.lora_names.get(id))?;
        let name = |at: &Self| OrNone(at.lora_names.get(id).map(|name| format!("{id}={name}")));
        both("lora_names", &name(self), &name(other))
    }
}

/// Displays times to live.
struct Ttls<'a>(&'a BTreeMap<String, Duration>);

impl fmt::Display for Ttls<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str("none");
        }
        self.0.iter().enumerate().try_for_each(|(index, (medium, ttl))| {
            write!(f, "{}{medium}={}ms", if index == 0 { "" } else { "," }, ttl.as_millis())
        })
    }
}

/// Displays an optional list entry.
struct OrNone<T>(Option<T>);

impl<T: fmt::Display> fmt::Display for OrNone<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Some(entry) => entry.fmt(f),
            None => f.write_str("none"),
        }
    }
}

impl TryFrom<pb::RegisterWorkerRequest> for Registration {
    type Error = ConvertError;

    fn try_from(request: pb::RegisterWorkerRequest) -> Result<Self, ConvertError> {
        check_hash_scheme(request.hash_scheme.as_deref())?;
        let engine = read_engine(request.engine)?;
        let profile = request.profile.map(WorkerProfile::try_from).transpose();
        let profile = profile.map_err(|error| error.within("profile"))?;
        let copy_mode = read_copy_mode("copy_mode", request.copy_mode)?;
        let medium_ttls = {
            let ttls = request.medium_ttls.into_iter().map(|at| (at.medium, at.ttl_ms));
            read_medium_ttls(ttls.collect())?
        };
        if request.endpoints.is_empty() && !medium_ttls.is_empty() {
            let actual = "is set without endpoints".to_owned();
            let expected =
                "empty: publishers over PublishEvents remove blocks themselves".to_owned();
            return Err(ConvertError::new("medium_ttls", Problem::Mismatch { actual, expected }));
        }
        let registration = Self {
            worker: WorkerId::new(&request.worker_id)?,
            partition: PartitionKey::new(&request.model, &request.tenant)?,
            block_size: check_block_size(request.block_size)?,
            engine,
            endpoints: read_endpoints(request.endpoints)?,
            copy_mode: copy_mode.unwrap_or(engine.default_copy_mode()),
            loss_policy: read_loss_policy(request.loss_policy)?,
            lora_names: read_lora_names(request.lora_names)?,
            medium_ttls,
            connector_chunks: {
                let chunks = request.connector_chunks.into_iter().map(|at| (at.medium, at.blocks));
                read_connector_chunks(chunks.collect())?
            },
            local_indexer: read_local_indexer(request.local_indexer_endpoint)?,
            lease: read_lease(request.lease_ms)?,
            profile: profile.unwrap_or_default(),
            kind: pool::read_kind(request.kind)?,
            pools: pool::read_pool_ids(&request.pool_ids)?,
            facts: facts::read_engine_facts(request.engine_facts.as_ref())?,
        };
        pool::check_reader(&registration.worker, &registration.pools)?;
        if registration.kind == HolderKind::Pool {
            pool::check_empty(&[
                ("endpoints", registration.endpoints.is_empty()),
                ("local_indexer_endpoint", registration.local_indexer.is_none()),
                ("lease_ms", registration.lease.is_none()),
                ("profile", registration.profile == WorkerProfile::default()),
                ("pool_ids", registration.pools.is_empty()),
                ("connector_chunks", registration.connector_chunks.is_empty()),
                ("engine_facts", registration.facts == EngineFacts::default()),
            ])?;
        }
        Ok(registration)
    }
}

/// Replaces the agent's address: requests to the agent use the broker, on the worker's subject.
pub const LOCAL_INDEXER_BY_BROKER: &str = "nats";

/// Reads an agent's address without a path, or [`LOCAL_INDEXER_BY_BROKER`].
pub(super) fn read_local_indexer(url: String) -> Result<Option<String>, ConvertError> {
    const FIELD: &str = "local_indexer_endpoint";
    if url.is_empty() {
        return Ok(None);
    }
    if url == LOCAL_INDEXER_BY_BROKER {
        return Ok(Some(url));
    }
    check_name(FIELD, &url)?;
    read_target(&url).map(Some).map_err(|_malformed| {
        let actual = format!("is {url:?}");
        let expected = "host:port, http://host:port, https://host:port or nats".to_owned();
        ConvertError::new(FIELD, Problem::Mismatch { actual, expected })
    })
}

fn read_lease(lease_ms: u32) -> Result<Option<Duration>, ConvertError> {
    if lease_ms == 0 {
        return Ok(None);
    }
    check_range("lease_ms", lease_ms.into(), LEASE_MS_MIN.into(), LEASE_MS_MAX.into())?;
    Ok(Some(Duration::from_millis(lease_ms.into())))
}

impl From<&Registration> for pb::RegisterWorkerRequest {
    fn from(registration: &Registration) -> Self {
        let endpoints = registration.endpoints.iter().map(|spec| pb::EngineEndpoint {
            endpoint: spec.endpoint.clone(),
            replay_endpoint: spec.replay.clone().unwrap_or_default(),
            topic: spec.topic.clone(),
            bind: spec.bind,
            dp_rank: spec.rank,
        });
        let lora_names = registration.lora_names.iter();
        let loss_policy = match registration.loss_policy {
            None => pb::LossPolicy::Unspecified,
            Some(LossPolicy::Keep) => pb::LossPolicy::Keep,
            Some(LossPolicy::Clear) => pb::LossPolicy::Clear,
        };
        let copy_mode = match registration.copy_mode {
            CopyMode::Counted => pb::CopyMode::Counted,
            CopyMode::Set => pb::CopyMode::Set,
        };
        Self {
            worker_id: registration.worker.as_str().to_owned(),
            model: registration.partition.model().to_owned(),
            tenant: registration.partition.tenant().to_owned(),
            block_size: registration.block_size,
            engine: registration.engine.message().into(),
            endpoints: endpoints.collect(),
            copy_mode: copy_mode.into(),
            loss_policy: loss_policy.into(),
            lora_names: lora_names
                .map(|(&id, name)| pb::LoraName { id, name: name.clone() })
                .collect(),
            medium_ttls: registration.medium_ttls.iter().map(medium_ttl).collect(),
            connector_chunks: registration
                .connector_chunks
                .iter()
                .map(|(medium, &blocks)| pb::ConnectorChunk { medium: medium.clone(), blocks })
                .collect(),
            local_indexer_endpoint: registration.local_indexer.clone().unwrap_or_default(),
            lease_ms: registration
                .lease
                .map_or(0, |lease| u32::try_from(lease.as_millis()).unwrap_or(u32::MAX)),
            profile: Some(&registration.profile)
                .filter(|profile| **profile != WorkerProfile::default())
                .map(Into::into),
            hash_scheme: None,
            replace: false,
            take_over: false,
            engine_facts: facts::engine_facts(&registration.facts),
            kind: pool::kind_message(registration.kind).into(),
            pool_ids: registration.pools.iter().map(|at| at.as_str().to_owned()).collect(),
        }
    }
}

fn medium_ttl((medium, ttl): (&String, &Duration)) -> pb::MediumTtl {
    let ttl_ms = u32::try_from(ttl.as_millis()).unwrap_or(u32::MAX);
    pb::MediumTtl { medium: medium.clone(), ttl_ms }
}

fn read_engine(value: i32) -> Result<EngineKind, ConvertError> {
    match pb::Engine::try_from(value) {
        Ok(pb::Engine::Unspecified | pb::Engine::Custom) => Ok(EngineKind::Custom),
        Ok(pb::Engine::Vllm) => Ok(EngineKind::Vllm),
        Ok(pb::Engine::Sglang) => Ok(EngineKind::Sglang),
        Ok(pb::Engine::Trtllm) => Ok(EngineKind::Trtllm),
        Err(_) => Err(ConvertError::new("engine", Problem::UnknownValue(value))),
    }
}

fn read_loss_policy(value: i32) -> Result<Option<LossPolicy>, ConvertError> {
    match pb::LossPolicy::try_from(value) {
        Ok(pb::LossPolicy::Unspecified) => Ok(None),
        Ok(pb::LossPolicy::Keep) => Ok(Some(LossPolicy::Keep)),
        Ok(pb::LossPolicy::Clear) => Ok(Some(LossPolicy::Clear)),
        Err(_) => Err(ConvertError::new("loss_policy", Problem::UnknownValue(value))),
    }
}

fn read_endpoints(endpoints: Vec<pb::EngineEndpoint>) -> Result<Vec<EndpointSpec>, ConvertError> {
    check_count("endpoints", endpoints.len(), WORKER_ENDPOINTS_MAX)?;
    let mut specs: Vec<EndpointSpec> = Vec::with_capacity(endpoints.len());
    for (index, endpoint) in endpoints.into_iter().enumerate() {
        let outer = format!("endpoints[{index}]");
        check_endpoint(&endpoint).map_err(|error| error.within(&outer))?;
        if specs.iter().any(|spec| spec.endpoint == endpoint.endpoint) {
            let problem = Problem::Repeated(endpoint.endpoint);
            return Err(ConvertError::new("endpoint", problem).within(outer));
        }
        specs.push(EndpointSpec {
            endpoint: endpoint.endpoint,
            replay: Some(endpoint.replay_endpoint).filter(|replay| !replay.is_empty()),
            topic: endpoint.topic,
            bind: endpoint.bind,
            rank: endpoint.dp_rank,
        });
    }
    Ok(specs)
}

fn check_endpoint(endpoint: &pb::EngineEndpoint) -> Result<(), ConvertError> {
    check_required_name("endpoint", &endpoint.endpoint)?;
    check_name("replay_endpoint", &endpoint.replay_endpoint)?;
    check_text("topic", &endpoint.topic, NAME_BYTES_MAX)
}

fn read_lora_names(names: Vec<pb::LoraName>) -> Result<BTreeMap<u64, String>, ConvertError> {
    check_count("lora_names", names.len(), WORKER_LORA_NAMES_MAX)?;
    let mut read = BTreeMap::new();
    for (index, pb::LoraName { id, name }) in names.into_iter().enumerate() {
        let outer = format!("lora_names[{index}]");
        check_required_name("name", &name).map_err(|error| error.within(&outer))?;
        if read.insert(id, name).is_some() {
            let problem = Problem::Repeated(id.to_string());
            return Err(ConvertError::new("id", problem).within(outer));
        }
    }
    Ok(read)
}

/// Checks times to live in milliseconds, by medium. Returns them by the medium's name in upper case.
///
/// # Errors
/// If there are too many entries, an entry is out of range, or a medium occurs twice. The error names the entry.
pub fn read_medium_ttls(
    ttls: Vec<(String, u32)>,
) -> Result<BTreeMap<String, Duration>, ConvertError> {
    check_count("medium_ttls", ttls.len(), WORKER_MEDIUM_TTLS_MAX)?;
    let mut read = BTreeMap::new();
    for (index, (medium, ttl_ms)) in ttls.into_iter().enumerate() {
        let min = MEDIUM_TTL_MS_MIN.into();
        let max = MEDIUM_TTL_MS_MAX.into();
        let checked = check_required_name("medium", &medium)
            .and_then(|()| check_range("ttl_ms", ttl_ms.into(), min, max))
            .and_then(|()| {
                let ttl = Duration::from_millis(ttl_ms.into());
                match read.insert(medium.to_ascii_uppercase(), ttl) {
                    None => Ok(()),
                    Some(_) => Err(ConvertError::new("medium", Problem::Repeated(medium))),
                }
            });
        checked.map_err(|error| error.within(format!("medium_ttls[{index}]")))?;
    }
    Ok(read)
}

/// A checked `RemoveWorkerRequest`: a worker and its partition.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WorkerAddress {
    /// Partition of the worker.
    pub partition: PartitionKey,
    /// The worker.
    pub worker: WorkerId,
}

impl fmt::Display for WorkerAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.worker, self.partition)
    }
}

impl TryFrom<pb::RemoveWorkerRequest> for WorkerAddress {
    type Error = ConvertError;

    fn try_from(request: pb::RemoveWorkerRequest) -> Result<Self, ConvertError> {
        Ok(Self {
            partition: PartitionKey::new(&request.model, &request.tenant)?,
            worker: WorkerId::new(&request.worker_id)?,
        })
    }
}

#[cfg(test)]
#[path = "worker_test.rs"]
mod tests;
