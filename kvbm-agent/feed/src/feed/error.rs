use crate::journal::DumpError;
use kvasir_proto::code::ErrorCode;
use std::time::Duration;

/// Why a dump, or digests, did not come about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum FeedError {
    /// Too many wait for their turn.
    #[error("{limit} requests wait for the same already: ask later")]
    TooManyWait {
        /// The most that may.
        limit: usize,
    },
    /// Those before took too long.
    #[error("earlier requests took longer than {0:?}: ask later")]
    WaitedTooLong(Duration),
    /// The journal's answer.
    #[error(transparent)]
    Dump(#[from] DumpError),
}

impl FeedError {
    /// Code to report it with.
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
