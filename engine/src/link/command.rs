use crate::expiry::Expired;
use crate::normalise::Drops;
use crate::zmtp::Excess;
use kvasir_proto::types::{
    BatchOutcome, Cursor, DpRank, KvEvent, Learned, NameChange, Reason, SourceStatus,
};
use std::sync::Arc;
use tokio::time::Instant;

/// Commands for the index about one source, to be executed in order.
#[derive(Debug, Clone, PartialEq)]
pub enum SourceCommand {
    /// Apply one batch. Implies one [`BatchOutcome::Applied`].
    Apply {
        /// The source's cursor after the batch.
        cursor: Cursor,
        /// Rank that caches the blocks.
        rank: DpRank,
        /// The batch's events, in order.
        events: Vec<KvEvent>,
        /// The batch's events about a store that workers share, in order; empty without a pool.
        pool_events: Vec<KvEvent>,
        /// Dropped block operations: those in neither list of events.
        drops: Box<Drops>,
        /// Blocks in `events` that no query can match.
        unmatchable_blocks: u64,
        /// Why the source is not exact after the batch: reasons with a count and the first example.
        reasons: Vec<(Reason, u64, String)>,
        /// New meanings of names, in order. To resume, [`run`](super::run) needs all meanings.
        names: Vec<NameChange>,
        /// Facts that the engine has shown about itself. To resume, [`run`](super::run) needs them.
        learned: Arc<Learned>,
    },
    /// Apply a removal that is in no batch: blocks whose time to live is over, see [`expiry`](crate::expiry).
    /// The cursor stays.
    Expire(Expired),
    /// Apply an expiry in the pool. A pool's blocks outlive the source's incarnation, and every
    /// [`SourceCommand::Clear`].
    ExpireInPool(Expired),
    /// Begin a new incarnation: drop all blocks of the source. This may come twice for one restart: when it
    /// is detected, and with the first batch of the new incarnation.
    Clear,
    /// Events were lost: mark the source's blocks as suspect until they are announced again.
    MarkSuspect,
    /// Drop the blocks that are still suspect.
    DropSuspects,
    /// Events were lost: drop all blocks of the source, also in the pool. The incarnation continues.
    ClearLost,
    /// Disconnected for too long: drop all blocks of the source, and its cursor. The link keeps trying to
    /// connect. It starts over with a [`SourceCommand::Clear`].
    Expired,
    /// Batches that were not applied.
    Outcome {
        /// Outcome of the batches.
        outcome: BatchOutcome,
        /// Number of batches since the last such command.
        batches: u64,
    },
    /// Rounds of replay that ended.
    Replays {
        /// Outcome of the rounds.
        outcome: ReplayOutcome,
        /// Number of rounds since the last such command.
        rounds: u64,
    },
    /// Connections that were closed because the engine exceeded a limit.
    Excess {
        /// The exceeded limit.
        excess: Excess,
        /// Number of connections since the last such command.
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
    /// The round failed: the connection failed, or the reply was late or malformed.
    Failed,
    /// The link ended the round: a hole in the replay, a new incarnation, or the end of the live connection.
    Cancelled,
}
