//! Errors of the index.

use crate::source::SourceId;
use kvasir_proto::types::{DpRank, WorkerId};

/// Why the index rejected a call.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum IndexError {
    /// The worker is unknown.
    #[error("worker {worker} is not known")]
    UnknownWorker {
        /// The requested worker.
        worker: WorkerId,
    },
    /// The worker does not have this rank.
    #[error("worker {worker} has no rank {rank}")]
    UnknownRank {
        /// The worker.
        worker: WorkerId,
        /// The requested rank.
        rank: DpRank,
    },
    /// The source does not exist; it may have been removed.
    #[error("source {source_id} is not known")]
    UnknownSource {
        /// The requested source.
        source_id: SourceId,
    },
    /// The worker already has a source with this name.
    #[error("worker {worker} has a source named {name}")]
    DuplicateSource {
        /// The worker.
        worker: WorkerId,
        /// The source's name.
        name: String,
    },
    /// A limit of the worker was reached.
    #[error("worker {worker} has {limit} {what}, the limit")]
    TooMany {
        /// The worker.
        worker: WorkerId,
        /// The limited items.
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
    /// The source still has blocks.
    #[error("source {source_id} still holds {copies} blocks")]
    NotCleared {
        /// The source.
        source_id: SourceId,
        /// Number of copies.
        copies: u64,
    },
    /// A concurrent change aborted the dump; begin it again.
    #[error("dump of {worker} aborted: {reason}")]
    DumpAborted {
        /// The worker.
        worker: WorkerId,
        /// The concurrent change.
        reason: &'static str,
    },
}

/// The saved images of a worker are damaged: no cut produces such images.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "the saved images of worker {worker} are damaged, a {field} {what}: delete them and start over"
)]
pub struct DamagedImage {
    /// The worker.
    pub worker: WorkerId,
    /// The damaged item.
    pub field: &'static str,
    /// How it is damaged.
    pub what: &'static str,
}
