use crate::journal::DumpError;
use kvasir_proto::code::ErrorCode;
use std::time::Duration;

/// Why a dump or digests cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum FeedError {
    /// Too many requests wait for the permit.
    #[error("{limit} requests wait for the same already: ask later")]
    TooManyWait {
        /// Maximum number of waiting requests.
        limit: usize,
    },
    /// Earlier requests took too long.
    #[error("earlier requests took longer than {0:?}: ask later")]
    WaitedTooLong(Duration),
    /// The journal refused the dump.
    #[error(transparent)]
    Dump(#[from] DumpError),
}

impl FeedError {
    /// Error code to report.
    #[must_use]
    pub const fn code(&self) -> ErrorCode {
        match self {
            Self::TooManyWait { .. } | Self::WaitedTooLong(_) | Self::Dump(DumpError::Busy) => {
                ErrorCode::ResourceExhausted
            }
            Self::Dump(DumpError::WrongIncarnation { .. }) => ErrorCode::FailedPrecondition,
            Self::Dump(DumpError::Aborted(_)) => ErrorCode::Aborted,
            Self::Dump(DumpError::Over) => ErrorCode::Internal,
        }
    }
}
