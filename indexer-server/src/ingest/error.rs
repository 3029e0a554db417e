use super::exhausted::RegistrationsExhausted;
use crate::partitions::{Partition, PartitionError, WriterGone};
use kvasir_engine::normalise::ChunkError;
use kvasir_engine::recover::{PAST_INCARNATIONS_KEPT, PAST_INCARNATIONS_MAX};
use kvasir_engine::zmtp::EndpointError;
use kvasir_index::IndexError;
use kvasir_proto::code::ErrorCode;
use kvasir_proto::convert::{TooManyBlocks, WorkerAddress};
use kvasir_proto::limits::POOLS_MAX;
use kvasir_proto::shard::WrongShard;
use kvasir_proto::types::PartitionKey;

/// Why a registration, a removal, a publisher or a placement was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum IngestError {
    /// The worker is not registered.
    #[error(
        "worker_id {:?} is not registered for model {:?}, tenant {:?}: call RegisterWorker first",
        address.worker.as_str(), address.partition.model(), address.partition.tenant()
    )]
    UnknownWorker {
        /// The worker.
        address: WorkerAddress,
    },
    /// The worker belongs to another shard.
    #[error(transparent)]
    WrongShard(#[from] WrongShard),
    /// The worker is registered with other properties.
    #[error(
        "worker {address} is registered with {field} {present}, not {requested}: remove it first, or \
         register it as it is"
    )]
    Conflict {
        /// The worker.
        address: WorkerAddress,
        /// First field that differs.
        field: &'static str,
        /// Registered value.
        present: String,
        /// Requested value.
        requested: String,
    },
    /// Another agent serves the worker.
    #[error(
        "another agent serves worker {address}, with {field} {present}, not {requested}: give each its own \
         worker_id, or stop the other"
    )]
    Disputed {
        /// The worker.
        address: WorkerAddress,
        /// First field that differs between both registrations.
        field: &'static str,
        /// Value of the other agent.
        present: String,
        /// Requested value.
        requested: String,
    },
    /// Another worker follows the same socket.
    #[error(
        "worker {address} cannot follow {endpoint}: {other} follows it with topic {topic:?}, and both would be credited \
         with the blocks of one engine. Remove the other worker, register this one with take_over, or give each a topic \
         of its own"
    )]
    SocketInUse {
        /// The worker.
        address: WorkerAddress,
        /// The socket.
        endpoint: String,
        /// Topic of the other worker.
        topic: String,
        /// The other worker, as far as the caller may see it.
        other: String,
    },
    /// A source of the pool is connected, so its registration can't change.
    #[error(
        "pool {address} has {field} {present}, not {requested}, and a source of it is connected: register it with the same \
         {field}, or stop all its sources first"
    )]
    PoolInUse {
        /// The pool.
        address: WorkerAddress,
        /// First field that differs.
        field: &'static str,
        /// Registered value.
        present: String,
        /// Requested value.
        requested: String,
    },
    /// The source's first stream of this incarnation had another copy mode.
    #[error(
        "copy_mode of source {source_name:?} cannot change within one incarnation: use the same one, or begin \
         a new incarnation"
    )]
    CopyMode {
        /// The source.
        source_name: String,
    },
    /// A newer incarnation has replaced this one.
    #[error(
        "incarnation of source {source_name:?} has ended: begin a new one, or try again if it is the \
         current one"
    )]
    PastIncarnation {
        /// The source.
        source_name: String,
    },
    /// The source has too many recent incarnations.
    #[error(
        "source {source_name:?} has begun more than {PAST_INCARNATIONS_MAX} incarnations within {} s, the limit: \
         continue the present one, or try again later", PAST_INCARNATIONS_KEPT.as_secs()
    )]
    TooManyIncarnations {
        /// The source.
        source_name: String,
    },
    /// The partition refuses the worker.
    #[error(transparent)]
    Partition(#[from] PartitionError),
    /// An endpoint is invalid.
    #[error("{field}: {error}")]
    Endpoint {
        /// Path of the field.
        field: String,
        /// The reason, and a valid alternative.
        error: EndpointError,
    },
    /// A time to live for a medium that is not the worker's own memory.
    #[error(
        "medium_ttls: {medium:?} is not a medium of a worker's own memory: use one that engines announce, \
         such as CPU or DISK"
    )]
    Medium {
        /// The medium.
        medium: String,
    },
    /// The chunk sizes of connectors are invalid.
    #[error("connector_chunks: {0}")]
    Chunks(#[from] ChunkError),
    /// A placement names a pool, but pools do not serve prompts.
    #[error("worker_id {:?} is a pool, which serves no requests: record the worker that does", address.worker.as_str())]
    PlacedInPool {
        /// The pool.
        address: WorkerAddress,
    },
    /// The partition has too many pools.
    #[error(
        "model {:?}, tenant {:?} has {POOLS_MAX} pools, the limit: remove those that are not used (RemoveWorker)",
        key.model(), key.tenant()
    )]
    TooManyPools {
        /// The partition.
        key: PartitionKey,
    },
    /// The prompt of a placement is too long.
    #[error(transparent)]
    TooManyBlocks(#[from] TooManyBlocks),
    /// The registration exceeds a limit.
    #[error(transparent)]
    Exhausted(#[from] RegistrationsExhausted),
    /// The index refuses the change.
    #[error(transparent)]
    Index(#[from] IndexError),
    /// The server is stopping.
    #[error(transparent)]
    Stopping(#[from] WriterGone),
    /// A fault of the server. The log has the cause.
    #[error("the change failed within the server")]
    Failed,
}

impl IngestError {
    pub(super) fn block_size(partition: &Partition, requested: u32) -> Self {
        let key = partition.key().clone();
        let present = partition.block_size();
        Self::Partition(PartitionError::BlockSize { key, present, requested })
    }

    /// Whether only the hello caused the error.
    pub(super) const fn is_of_hello(&self) -> bool {
        matches!(
            self,
            Self::PastIncarnation { .. } | Self::TooManyIncarnations { .. } | Self::CopyMode { .. }
        )
    }

    /// Returns the error code for the response.
    #[must_use]
    pub const fn code(&self) -> ErrorCode {
        match self {
            Self::UnknownWorker { .. } => ErrorCode::NotFound,
            Self::WrongShard(_)
            | Self::Conflict { .. }
            | Self::Disputed { .. }
            | Self::PoolInUse { .. }
            | Self::SocketInUse { .. }
            | Self::PlacedInPool { .. }
            | Self::CopyMode { .. } => ErrorCode::FailedPrecondition,
            Self::Partition(error) => error.code(),
            Self::Endpoint { .. }
            | Self::Medium { .. }
            | Self::Chunks(_)
            | Self::TooManyBlocks(_) => ErrorCode::InvalidArgument,
            Self::TooManyIncarnations { .. } | Self::Exhausted(_) | Self::TooManyPools { .. } => {
                ErrorCode::ResourceExhausted
            }
            Self::Index(IndexError::DuplicateSource { .. }) => ErrorCode::FailedPrecondition,
            Self::Index(IndexError::TooMany { .. } | IndexError::NoRoom { .. }) => {
                ErrorCode::ResourceExhausted
            }
            Self::Index(
                IndexError::UnknownWorker { .. }
                | IndexError::UnknownRank { .. }
                | IndexError::UnknownSource { .. }
                | IndexError::NotCleared { .. }
                | IndexError::DumpAborted { .. },
            ) => ErrorCode::Internal,
            Self::Stopping(_) | Self::PastIncarnation { .. } => ErrorCode::Unavailable,
            Self::Failed => ErrorCode::Internal,
        }
    }
}
