use crate::{expiry::Expired, normalise::Drops, zmtp::Excess};
use kvasir_proto::types::{
    BatchOutcome, Cursor, DpRank, KvEvent, Learned, NameChange, Reason, SourceStatus,
};
use std::sync::Arc;
use tokio::time::Instant;

/// What the index is to do for a source, in this order.
#[derive(Debug, Clone, PartialEq)]
pub enum SourceCommand {
    /// Apply one batch. Implies one [`BatchOutcome::Applied`].
    Apply {
        /// The source's cursor once it is applied.
        cursor: Cursor,
        /// Rank that holds the blocks.
        rank: DpRank,
        /// What the batch announces, in order.
        events: Vec<KvEvent>,
        /// What it announces of a store that workers share, in order; empty without a pool.
        pool_events: Vec<KvEvent>,
        /// Block operations of the batch that are in neither.
        drops: Box<Drops>,
        /// Blocks in `events` that no query can match.
        unmatchable_blocks: u64,
        /// Why the source is not exact after it: reasons with a count and the first example.
        reasons: Vec<(Reason, u64, String)>,
        /// New meanings of names, in order; [`run`](super::run) needs all meanings again to resume.
        names: Vec<NameChange>,
        /// What the engine has shown of itself, likewise.
        learned: Arc<Learned>,
    },
    /// Apply what is in no batch: blocks whose time to live is over, see
    /// [`expiry`](crate::expiry). The cursor stays.
    Expire(Expired),
    /// The same, of the pool. What a pool holds outlives the source's incarnation, and each of its `Clear`s.
    ExpireInPool(Expired),
    /// What follows belongs to a new incarnation: drop all that the source stored. May come twice for one
    /// restart: when it is detected, and with the first batch of the new incarnation.
    Clear,
    /// Events were lost: what is held now is suspect until it is announced again.
    MarkSuspect,
    /// Drop what is still suspect.
    DropSuspects,
    /// Events were lost: drop all that the source stored, in the same incarnation, and in the pool.
    ClearLost,
    /// Disconnected for too long: drop all that the source stored, its cursor included. The link
    /// keeps trying to connect and starts over with a [`SourceCommand::Clear`].
    Expired,
    /// Batches that are not applied.
    Outcome {
        /// What became of them.
        outcome: BatchOutcome,
        /// How many since the last such command.
        batches: u64,
    },
    /// Rounds of replay that came to an end.
    Replays {
        /// How they ended.
        outcome: ReplayOutcome,
        /// How many since the last such command.
        rounds: u64,
    },
    /// Connections that were closed because the engine went beyond a limit.
    Excess {
        /// The limit.
        excess: Excess,
        /// How many since the last such command.
        connections: u64,
    },
    /// The first attempt to connect has failed.
    Unreachable,
    /// The source's status changed.
    Status(SourceStatus<Instant>),
}

/// How a round of replay ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ReplayOutcome {
    /// The publisher sent the end of the replay.
    Completed,
    /// It broke off: no answer in time, a malformed one, or no connection.
    Failed,
    /// It was ended from here: a hole in it, a new incarnation, or the end of the live connection.
    Cancelled,
}
