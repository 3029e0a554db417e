use crate::expiry;
use crate::normalise::NormaliserConfig;
use crate::sequence::{HeldBytes, SequencerConfig};
use crate::zmtp::{Attach, Endpoint, Limits};
use bytes::Bytes;
use kvasir_proto::types::{BlockName, DpRank, NameMeaning, SourceStatus};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Semaphore;

/// Maximum number of commands that wait for a slow receiver, besides those in its channel.
pub const OUTBOX_COMMANDS_MAX: usize = 1_024;
/// Maximum bytes of batch payloads in the waiting commands.
pub const OUTBOX_BYTES_MAX: usize = 16 << 20;
/// Default of [`LinkConfig::replay_reply_timeout`].
pub const REPLAY_REPLY_TIMEOUT: Duration = Duration::from_secs(5);
/// Minimum time between two reports of [`SourceStatus`](kvasir_proto::types::SourceStatus) and outcomes that
/// are not urgent.
pub const STATUS_INTERVAL: Duration = Duration::from_millis(200);

/// Configuration of a link: addresses, limits, and rules.
#[derive(Debug, Clone)]
pub struct LinkConfig {
    /// The publisher's socket.
    pub attach: Attach,
    /// The publisher's replay socket, if it has one.
    pub replay: Option<Endpoint>,
    /// Maximum time to the next reply of a replay round; for the first reply, connecting included. The round
    /// fails after it. [`REPLAY_REPLY_TIMEOUT`] is a good value.
    pub replay_reply_timeout: Duration,
    /// Topic filter: see [`takes_topic`](super::takes_topic).
    pub topic: Bytes,
    /// How batches are normalised.
    pub normaliser: NormaliserConfig,
    /// How batches are ordered. `replay` determines whether there is a replay socket.
    pub sequencing: SequencerConfig,
    /// Limits and timeouts of the connections.
    pub zmtp: Limits,
}

/// State from which a link resumes after a restart.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Resume {
    /// The source's status, with the last batch that was applied.
    pub status: SourceStatus,
    /// Meanings of the source's block names that later events do not repeat.
    pub names: Vec<(DpRank, BlockName, NameMeaning)>,
    /// Ranks that the source feeds.
    pub ranks: Vec<DpRank>,
}

/// Resources that all links of a process share.
#[derive(Debug, Clone)]
pub struct Common {
    /// Permits for rounds of replay, one per round.
    pub replay_permits: Arc<Semaphore>,
    /// Memory budget for buffered batches.
    pub held: Arc<HeldBytes>,
    /// Memory budget for the deadlines of blocks with a time to live.
    pub deadlines: Arc<HeldBytes>,
}

impl Common {
    /// Creates unused budgets, and permits for `replays_max` concurrent rounds of replay.
    #[must_use]
    pub fn new(replays_max: usize) -> Self {
        Self {
            replay_permits: Arc::new(Semaphore::new(replays_max)),
            held: Arc::default(),
            deadlines: Arc::new(expiry::all_deadlines()),
        }
    }
}
