use crate::partitions::WriterGone;
use crate::snapshot::StoreError;
use kvasir_index::IndexError;
use kvasir_proto::code::ErrorCode;
use std::sync::Arc;

/// Why a checkpoint was not written. The previous checkpoint is intact, and the next one includes the missing changes.
#[derive(Debug, Clone, thiserror::Error)]
pub enum CheckpointError {
    /// The store failed.
    #[error(transparent)]
    Store(Arc<StoreError>),
    /// The index refused a cut.
    #[error(transparent)]
    Index(#[from] IndexError),
    /// The server is stopping.
    #[error("the server is stopping")]
    Stopping,
}

impl From<StoreError> for CheckpointError {
    fn from(error: StoreError) -> Self {
        Self::Store(Arc::new(error))
    }
}

impl From<WriterGone> for CheckpointError {
    fn from(_: WriterGone) -> Self {
        Self::Stopping
    }
}

impl CheckpointError {
    /// Error code for the response.
    #[must_use]
    pub const fn code(&self) -> ErrorCode {
        match self {
            Self::Store(_) | Self::Stopping => ErrorCode::Unavailable,
            Self::Index(_) => ErrorCode::Internal,
        }
    }
}
