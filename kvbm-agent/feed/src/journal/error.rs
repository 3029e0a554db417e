use kvasir_proto::types::{DpRank, Incarnation};

/// Why a batch is not in the journal. Nothing has changed, and no number is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum AppendError {
    /// The incarnation's numbers are used up.
    #[error("the sequence numbers of this incarnation are used up: begin a new incarnation")]
    Exhausted,
    /// Too many blocks in one event.
    #[error("events[{index}] has {count} blocks, the limit is {limit}: cut it into several")]
    TooManyBlocks {
        /// Which event.
        index: usize,
        /// How many blocks.
        count: usize,
        /// The most that are taken.
        limit: usize,
    },
    /// A further rank.
    #[error("rank {rank} is one more than the {limit} that a worker may have")]
    TooManyRanks {
        /// The rank.
        rank: DpRank,
        /// The most that are taken.
        limit: usize,
    },
}

/// Why a range cannot be had.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RangeError {
    /// The next batch that is wanted is not retained any more.
    #[error("the oldest batch that is retained is {oldest}, the newest {head}")]
    TooOld {
        /// The oldest that is.
        oldest: u64,
        /// The newest.
        head: u64,
    },
    /// The range begins more than one beyond the newest batch.
    #[error("the newest batch is {head:?}")]
    Ahead {
        /// The newest batch.
        head: Option<u64>,
    },
    /// Another incarnation is meant.
    #[error("the present incarnation is {present}")]
    WrongIncarnation {
        /// The present one.
        present: Incarnation,
    },
}

/// Why a dump broke off.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum DumpAbort {
    /// More names changed than are noted.
    #[error("too many names changed meanwhile")]
    TooManyChanges,
    /// A rank was cleared.
    #[error("a rank was cleared meanwhile")]
    Cleared,
    /// A new incarnation began.
    #[error("a new incarnation began meanwhile")]
    NewIncarnation,
}

/// Why a dump cannot continue. "Failed" is never "empty": an empty dump has its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum DumpError {
    /// Another dump is under way.
    #[error("another dump is under way")]
    Busy,
    /// Another incarnation is meant.
    #[error("the present incarnation is {present}")]
    WrongIncarnation {
        /// The present one.
        present: Incarnation,
    },
    /// It was cut off: begin again.
    #[error("the dump broke off: {0}: dump again")]
    Aborted(DumpAbort),
    /// It has ended, or was cancelled.
    #[error("the dump is over")]
    Over,
}

/// Why there are no digests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum DigestError {
    /// Another incarnation is meant.
    #[error("the present incarnation is {present}")]
    WrongIncarnation {
        /// The present one.
        present: Incarnation,
    },
    /// Blocks are missing, and digests would not show that.
    #[error("blocks were not taken, for the limit on held names")]
    Incomplete,
}
