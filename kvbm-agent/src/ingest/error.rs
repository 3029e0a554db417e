use super::StreamRefusal;
use kvasir_engine::recover::{PAST_INCARNATIONS_KEPT, PAST_INCARNATIONS_MAX};
use kvasir_feed::hub::HubError;
use kvasir_proto::code::ErrorCode;
use kvasir_proto::convert::WorkerAddress;

/// Why a publisher is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum IngestError {
    /// The agent is another worker's.
    #[error(
        "worker {requested} is not served here, {served} is: give its worker_id, model and tenant"
    )]
    OtherWorker {
        /// The requested one.
        requested: WorkerAddress,
        /// The agent's.
        served: WorkerAddress,
    },
    /// Blocks of another size.
    #[error(
        "block_size is {requested}, that of worker {served} is {present}: publish with {present}, or start the agent with \
         --block-size {requested}"
    )]
    BlockSize {
        /// The agent's worker.
        served: WorkerAddress,
        /// The requested one.
        requested: u32,
        /// The worker's.
        present: u32,
    },
    /// The source's first stream stated another, and its incarnation continues.
    #[error(
        "copy_mode of source {0:?} cannot change within one incarnation: leave it, or begin a new incarnation"
    )]
    CopyMode(String),
    /// A newer incarnation took its place.
    #[error("incarnation of source {0:?} is one that is over: begin a new one")]
    PastIncarnation(String),
    /// The memory of ended ones is full.
    #[error(
        "source {0:?} has begun more than {PAST_INCARNATIONS_MAX} incarnations within {kept} s, the limit: continue the \
         present one, or try again later", kept = PAST_INCARNATIONS_KEPT.as_secs()
    )]
    TooManyIncarnations(String),
    /// Too many at a time.
    #[error("{limit} streams are open already: try again later")]
    TooManyStreams {
        /// The most that may.
        limit: usize,
    },
    /// The agent does not take the source.
    #[error(transparent)]
    Hub(#[from] HubError),
}

impl IngestError {
    /// Code to report it with.
    #[must_use]
    pub const fn code(&self) -> ErrorCode {
        match self {
            // At an index such a worker may be registered yet; an agent never is another's.
            Self::OtherWorker { .. } | Self::BlockSize { .. } | Self::CopyMode(_) => {
                ErrorCode::FailedPrecondition
            }
            Self::PastIncarnation(_) => ErrorCode::Unavailable,
            Self::TooManyIncarnations(_) | Self::TooManyStreams { .. } => {
                ErrorCode::ResourceExhausted
            }
            Self::Hub(error) => error.code(),
        }
    }

    /// What it is counted as.
    #[must_use]
    pub const fn refusal(&self) -> StreamRefusal {
        match self {
            Self::OtherWorker { .. } => StreamRefusal::OtherWorker,
            Self::BlockSize { .. } => StreamRefusal::BlockSize,
            Self::CopyMode(_) | Self::Hub(HubError::CopyMode { .. }) => StreamRefusal::CopyMode,
            Self::PastIncarnation(_) => StreamRefusal::PastIncarnation,
            Self::TooManyIncarnations(_) => StreamRefusal::TooManyIncarnations,
            Self::TooManyStreams { .. } => StreamRefusal::TooManyStreams,
            Self::Hub(HubError::TooManySources { .. }) => StreamRefusal::TooManySources,
            Self::Hub(HubError::NameTaken(_)) => StreamRefusal::NameTaken,
            Self::Hub(_) => StreamRefusal::Failed,
        }
    }
}
