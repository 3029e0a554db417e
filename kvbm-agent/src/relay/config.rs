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

/// Maximum number of concurrent replay rounds, over all relays of an agent.
pub const REPLAYS_MAX: usize = 4;

/// State shared by all relays of an agent.
#[must_use]
pub fn common() -> Common {
    Common::new(REPLAYS_MAX)
}

/// Endpoint of an engine's publisher, and how to read it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RelayConfig {
    /// The engine's PUB socket, `tcp://host:port`. Also the name of the source.
    pub endpoint: String,
    /// Whether to listen on `endpoint`, for an engine that connects.
    pub bind: bool,
    /// The engine's replay socket; `None` without one.
    pub replay: Option<String>,
    /// Topic to read, or its beginning up to the end of a name; empty for all topics.
    pub topic: String,
    /// Kind of engine.
    pub engine: EngineKind,
    /// How repeated stores of a block are counted.
    pub copy_mode: CopyMode,
    /// Rank of batches that do not name one.
    pub rank: DpRank,
    /// Names of numbered LoRA adapters, for engines that send the number only.
    pub lora_names: HashMap<u64, String>,
    /// Time to live of blocks since their last announcement, by medium. For media whose connector never announces
    /// removals.
    pub medium_ttls: Vec<(String, Duration)>,
    /// Blocks per chunk, by medium, for connectors that load only complete chunks.
    pub connector_chunks: Vec<(String, u32)>,
    /// How long the engine may be disconnected. After that it counts as gone, and all its blocks are dropped.
    pub worker_timeout: Duration,
    /// Time between two probes of an engine that needs no recovery.
    pub probe_interval: Duration,
}

impl RelayConfig {
    /// Configuration for an engine that listens, without a replay socket, with the engine's default copy mode.
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

    /// Checks the sockets' addresses.
    ///
    /// # Errors
    /// If an address cannot be used.
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

    /// Converts the configuration of a relay to the configuration of a link. Fails if a socket address cannot be used.
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

/// Why an engine cannot be relayed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RelayError {
    /// A socket cannot be used.
    #[error("source {field}: {error}")]
    Endpoint {
        /// Key of the socket in the option `--source`.
        field: &'static str,
        /// Underlying error.
        error: EndpointError,
    },
    /// The hub refuses the source.
    #[error(transparent)]
    Hub(#[from] HubError),
}
