use crate::{
    expiry,
    normalise::NormaliserConfig,
    sequence::{HeldBytes, SequencerConfig},
    zmtp::{Attach, Endpoint, Limits},
};
use bytes::Bytes;
use kvasir_proto::types::{BlockName, DpRank, NameMeaning, SourceStatus};
use std::{sync::Arc, time::Duration};
use tokio::sync::Semaphore;

/// Commands held for a slow receiver, besides those in its channel.
pub const OUTBOX_COMMANDS_MAX: usize = 1_024;
/// Bytes of payload of the batches in these commands.
pub const OUTBOX_BYTES_MAX: usize = 16 << 20;
/// A round of replay fails if its next reply takes longer than this, by default.
pub const REPLAY_REPLY_TIMEOUT: Duration = Duration::from_secs(5);
/// Changes of [`SourceStatus`](kvasir_proto::types::SourceStatus) and outcomes that are not urgent are sent this
/// often at most.
pub const STATUS_INTERVAL: Duration = Duration::from_millis(200);

/// What a link connects to and how.
#[derive(Debug, Clone)]
pub struct LinkConfig {
    /// The publisher's socket.
    pub attach: Attach,
    /// The publisher's replay socket, if it has one.
    pub replay: Option<Endpoint>,
    /// A round of replay fails if its next reply takes longer than this; for the first one,
    /// connecting included. [`REPLAY_REPLY_TIMEOUT`] is a good value.
    pub replay_reply_timeout: Duration,
    /// Topics wanted: see [`takes_topic`](super::takes_topic).
    pub topic: Bytes,
    /// How batches are read.
    pub normaliser: NormaliserConfig,
    /// How batches are ordered. Whether there is a replay socket is taken from `replay`.
    pub sequencing: SequencerConfig,
    /// Limits and times of the connections.
    pub zmtp: Limits,
}

/// Where a link goes on after a restart.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Resume {
    /// The source's status, with the last batch that was applied.
    pub status: SourceStatus,
    /// What names of the blocks that it holds mean, as far as it must be known.
    pub names: Vec<(DpRank, BlockName, NameMeaning)>,
    /// Ranks that it feeds.
    pub ranks: Vec<DpRank>,
}

/// What all links of a process share.
#[derive(Debug, Clone)]
pub struct Common {
    /// Each round of replay takes one.
    pub replay_permits: Arc<Semaphore>,
    /// What is held back.
    pub held: Arc<HeldBytes>,
    /// What deadlines of blocks with a time to live take.
    pub deadlines: Arc<HeldBytes>,
}

impl Common {
    /// For links that nothing was taken for yet, with so many rounds of replay at a time.
    #[must_use]
    pub fn new(replays_max: usize) -> Self {
        Self {
            replay_permits: Arc::new(Semaphore::new(replays_max)),
            held: Arc::default(),
            deadlines: Arc::new(expiry::all_deadlines()),
        }
    }
}
