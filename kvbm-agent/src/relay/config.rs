use kvasir_engine::decode::EngineKind;
use kvasir_engine::link::{Common, LinkConfig, REPLAY_REPLY_TIMEOUT};
use kvasir_engine::normalise::NormaliserConfig;
use kvasir_engine::sequence::{LossPolicy, SequencerConfig};
use kvasir_engine::zmtp::{Attach, Endpoint, EndpointError, Limits};
use kvasir_feed::hub::HubError;
use kvasir_proto::types::{CopyMode, DpRank};
use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

/// Most rounds of replay at a time, over all relays of an agent.
pub const REPLAYS_MAX: usize = 4;

/// What all relays of an agent share.
#[must_use]
pub fn common() -> Common {
    Common::new(REPLAYS_MAX)
}

/// Where an engine publishes, and how it is read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RelayConfig {
    /// The engine's PUB socket, `tcp://host:port`: also the name of the source.
    pub endpoint: String,
    /// Listen there, for an engine that connects.
    pub bind: bool,
    /// Its replay socket; none if it has none.
    pub replay: Option<String>,
    /// Topic to take, or its beginning up to the end of a name; empty for all.
    pub topic: String,
    /// The engine.
    pub engine: EngineKind,
    /// How its second announcements are read.
    pub copy_mode: CopyMode,
    /// Rank of batches that name none.
    pub rank: DpRank,
    /// Names of numbered LoRA adapters, for engines that send the number only.
    pub lora_names: HashMap<u64, String>,
    /// How long blocks on a medium are held after they were last announced, for media whose connector
    /// never removes. By the medium's name.
    pub medium_ttls: Vec<(String, Duration)>,
    /// Blocks in a chunk of a connector that loads complete chunks only, by the medium's name.
    pub connector_chunks: Vec<(String, u32)>,
    /// How long it may be disconnected before it counts as gone, and all that it held is dropped.
    pub worker_timeout: Duration,
    /// Time between two probes of an engine that needs no recovery.
    pub probe_interval: Duration,
}

impl RelayConfig {
    /// An engine that listens, without a replay socket, and counts copies as vLLM does on its device.
    #[must_use]
    pub fn new(engine: EngineKind, endpoint: &str) -> Self {
        let SequencerConfig { worker_timeout, probe_interval, .. } = SequencerConfig::default();
        Self {
            endpoint: endpoint.to_owned(),
            bind: false,
            replay: None,
            topic: String::new(),
            engine,
            copy_mode: engine.default_copy_mode(),
            rank: 0,
            lora_names: HashMap::new(),
            medium_ttls: Vec::new(),
            connector_chunks: Vec::new(),
            worker_timeout,
            probe_interval,
        }
    }

    /// Checks its sockets.
    ///
    /// # Errors
    /// If one of them cannot be used.
    pub fn check(&self) -> Result<(), RelayError> {
        self.sockets().map(drop)
    }

    /// The PUB socket, and the replay socket if there is one.
    fn sockets(&self) -> Result<(Attach, Option<Endpoint>), RelayError> {
        let attach = Attach::parse(&self.endpoint, self.bind);
        let attach = attach.map_err(|error| RelayError::Endpoint { field: "endpoint", error })?;
        let replay = self.replay.as_deref().map(Endpoint::parse_dialable).transpose();
        let replay = replay.map_err(|error| RelayError::Endpoint { field: "replay", error })?;
        Ok((attach, replay))
    }

    /// The link that this asks for.
    pub(super) fn link(self, block_size: u32, has_pool: bool) -> Result<LinkConfig, RelayError> {
        let (attach, replay) = self.sockets()?;
        let mut hasher = DefaultHasher::new();
        self.endpoint.hash(&mut hasher);
        Ok(LinkConfig {
            attach,
            replay,
            replay_reply_timeout: REPLAY_REPLY_TIMEOUT,
            topic: self.topic.into(),
            normaliser: NormaliserConfig {
                engine: self.engine,
                block_size,
                default_rank: self.rank,
                lora_names: Arc::new(self.lora_names),
                medium_ttls: self.medium_ttls,
                has_pool,
                copy_mode: self.copy_mode,
                connector_chunks: self.connector_chunks,
            },
            sequencing: SequencerConfig {
                loss_policy: LossPolicy::Clear,
                worker_timeout: self.worker_timeout,
                probe_interval: self.probe_interval,
                jitter_seed: hasher.finish(),
                ..SequencerConfig::default()
            },
            zmtp: Limits::default(),
        })
    }
}

/// Why an engine is not relayed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RelayError {
    /// A socket cannot be used.
    #[error("source {field}: {error}")]
    Endpoint {
        /// Which, by its key in the option `--source`.
        field: &'static str,
        /// Why.
        error: EndpointError,
    },
    /// It is no source of the agent.
    #[error(transparent)]
    Hub(#[from] HubError),
}
