use kvasir_proto::types::{DpRank, Incarnation};

/// Why a batch was not appended. The journal is unchanged, and no number is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum AppendError {
    /// The incarnation's numbers are used up.
    #[error("the sequence numbers of this incarnation are used up: begin a new incarnation")]
    Exhausted,
    /// An event has too many blocks.
    #[error("events[{index}] has {count} blocks, the limit is {limit}: cut it into several")]
    TooManyBlocks {
        /// Index of the event.
        index: usize,
        /// Number of its blocks.
        count: usize,
        /// Maximum number of blocks.
        limit: usize,
    },
    /// The worker has its maximum number of ranks.
    #[error("rank {rank} is refused: the worker has {limit} ranks, the maximum")]
    TooManyRanks {
        /// The rank.
        rank: DpRank,
        /// Maximum number of ranks.
        limit: usize,
    },
}

/// Why a range cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RangeError {
    /// The next batch of the range is no longer retained.
    #[error("the journal has batches {oldest} to {head} only")]
    TooOld {
        /// The oldest retained batch.
        oldest: u64,
        /// The newest batch.
        head: u64,
    },
    /// The range begins more than one after the newest batch.
    #[error("the newest batch is {head:?}")]
    Ahead {
        /// The newest batch.
        head: Option<u64>,
    },
    /// The request is for another incarnation.
    #[error("the present incarnation is {present}")]
    WrongIncarnation {
        /// The current incarnation.
        present: Incarnation,
    },
}

/// Why a dump was aborted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum DumpAbort {
    /// More names changed than the limit on recorded changes.
    #[error("too many names changed during the dump")]
    TooManyChanges,
    /// A rank was cleared.
    #[error("a rank was cleared during the dump")]
    Cleared,
    /// A new incarnation began.
    #[error("a new incarnation began during the dump")]
    NewIncarnation,
}

/// Why a dump cannot continue. A failed dump never looks like an empty one, because an empty dump has an end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum DumpError {
    /// Another dump is in progress.
    #[error("another dump is under way")]
    Busy,
    /// The request is for another incarnation.
    #[error("the present incarnation is {present}")]
    WrongIncarnation {
        /// The current incarnation.
        present: Incarnation,
    },
    /// The dump was aborted: begin again.
    #[error("the dump broke off: {0}: dump again")]
    Aborted(DumpAbort),
    /// The dump has finished, or was cancelled.
    #[error("the dump is over")]
    Over,
}

/// Why digests are not available.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum DigestError {
    /// The request is for another incarnation.
    #[error("the present incarnation is {present}")]
    WrongIncarnation {
        /// The current incarnation.
        present: Incarnation,
    },
    /// Blocks are missing, which digests would not show.
    #[error("blocks were refused: the limit on block names is reached")]
    Incomplete,
}
