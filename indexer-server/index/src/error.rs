//! Errors of the index.

use crate::source::SourceId;
use kvasir_proto::types::{DpRank, WorkerId};

/// Why the index refused a call.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum IndexError {
    /// No worker of that name.
    #[error("worker {worker} is not known")]
    UnknownWorker {
        /// The requested worker.
        worker: WorkerId,
    },
    /// The worker has no such rank.
    #[error("worker {worker} has no rank {rank}")]
    UnknownRank {
        /// The worker.
        worker: WorkerId,
        /// The requested rank.
        rank: DpRank,
    },
    /// No such source; it was removed.
    #[error("source {source_id} is not known")]
    UnknownSource {
        /// The requested source.
        source_id: SourceId,
    },
    /// The worker has a source of that name.
    #[error("worker {worker} has a source named {name}")]
    DuplicateSource {
        /// The worker.
        worker: WorkerId,
        /// The source's name.
        name: String,
    },
    /// A named limit of the worker was reached.
    #[error("worker {worker} has {limit} {what}, the limit")]
    TooMany {
        /// The worker.
        worker: WorkerId,
        /// What there are too many of.
        what: &'static str,
        /// The limit.
        limit: usize,
    },
    /// The byte budget has no room for another rank or source.
    #[error(
        "worker {worker} has no room for another rank or source: what cannot be shed takes half of \
         --max-index-bytes. Raise that, or remove workers"
    )]
    NoRoom {
        /// The worker.
        worker: WorkerId,
    },
    /// The source still holds blocks.
    #[error("source {source_id} still holds {copies} blocks")]
    NotCleared {
        /// The source.
        source_id: SourceId,
        /// How many.
        copies: u64,
    },
    /// A concurrent change aborted the dump; begin it again.
    #[error("dump of {worker} aborted: {reason}")]
    DumpAborted {
        /// The worker.
        worker: WorkerId,
        /// What happened.
        reason: &'static str,
    },
}

/// The saved images of a worker are damaged: no cut makes such images.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "the saved images of worker {worker} are damaged, a {field} {what}: delete them and start over"
)]
pub struct DamagedImage {
    /// The worker.
    pub worker: WorkerId,
    /// What is damaged.
    pub field: &'static str,
    /// In which way.
    pub what: &'static str,
}
