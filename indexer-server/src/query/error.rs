use crate::partitions::{DumpError, WriterGone};
use kvasir_index::IndexError;
use kvasir_proto::code::ErrorCode;
use kvasir_proto::convert::TooManyBlocks;
use kvasir_proto::types::PartitionKey;

/// Why a query was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum QueryError {
    /// No worker of that model and tenant is registered.
    #[error(
        "no worker is registered for model {:?}, tenant {:?}; models of this tenant: {}",
        key.model(), key.tenant(), listed(models)
    )]
    UnknownPartition {
        /// The requested partition.
        key: PartitionKey,
        /// The first few models of the same tenant.
        models: Vec<String>,
    },
    /// The client assumes another block size.
    #[error("block_size is {requested}, but this partition has {present}")]
    BlockSize {
        /// Block size of the partition, in tokens.
        present: u32,
        /// Block size that the client assumes, in tokens.
        requested: u32,
    },
    /// The tokens fill too many blocks.
    #[error(transparent)]
    TooManyBlocks(#[from] TooManyBlocks),
    /// The index refuses the query.
    #[error(transparent)]
    Index(#[from] IndexError),
    /// The server is stopping.
    #[error(transparent)]
    Stopping(#[from] WriterGone),
}

impl From<DumpError> for QueryError {
    fn from(error: DumpError) -> Self {
        match error {
            DumpError::Index(error) => Self::Index(error),
            DumpError::Stopping(error) => Self::Stopping(error),
        }
    }
}

fn listed(models: &[String]) -> String {
    if models.is_empty() {
        return "none".to_owned();
    }
    models.join(", ")
}

impl QueryError {
    /// Returns the error code for the response.
    #[must_use]
    pub const fn code(&self) -> ErrorCode {
        match self {
            Self::UnknownPartition { .. }
            | Self::Index(IndexError::UnknownWorker { .. } | IndexError::UnknownRank { .. }) => {
                ErrorCode::NotFound
            }
            Self::BlockSize { .. } => ErrorCode::FailedPrecondition,
            Self::TooManyBlocks(_) => ErrorCode::InvalidArgument,
            Self::Index(IndexError::DumpAborted { .. }) => ErrorCode::Aborted,
            Self::Index(IndexError::TooMany { .. } | IndexError::NoRoom { .. }) => {
                ErrorCode::ResourceExhausted
            }
            Self::Index(
                IndexError::UnknownSource { .. }
                | IndexError::DuplicateSource { .. }
                | IndexError::NotCleared { .. },
            ) => ErrorCode::Internal,
            Self::Stopping(_) => ErrorCode::Unavailable,
        }
    }
}
