use super::StreamRefusal;
use kvasir_engine::recover::{PAST_INCARNATIONS_KEPT, PAST_INCARNATIONS_MAX};
use kvasir_feed::hub::HubError;
use kvasir_proto::code::ErrorCode;
use kvasir_proto::convert::WorkerAddress;

/// Why a publisher is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum IngestError {
    /// The agent belongs to another worker.
    #[error(
        "worker {requested} is not served here, {served} is: give its worker_id, model and tenant"
    )]
    OtherWorker {
        /// Worker of the publisher.
        requested: WorkerAddress,
        /// Worker of the agent.
        served: WorkerAddress,
    },
    /// The publisher has another block size.
    #[error(
        "block_size is {requested}, that of worker {served} is {present}: publish with {present}, or start the agent with \
         --block-size {requested}"
    )]
    BlockSize {
        /// Worker of the agent.
        served: WorkerAddress,
        /// Block size of the publisher.
        requested: u32,
        /// Block size of the worker.
        present: u32,
    },
    /// The copy mode differs from the mode of the source's first stream, although the incarnation continues.
    #[error(
        "copy_mode of source {0:?} cannot change within one incarnation: leave it, or begin a new incarnation"
    )]
    CopyMode(String),
    /// A newer incarnation has replaced this one.
    #[error("the incarnation of source {0:?} has ended: begin a new one")]
    PastIncarnation(String),
    /// Too many incarnations of the source have ended recently.
    #[error(
        "source {0:?} has begun more than {PAST_INCARNATIONS_MAX} incarnations within {kept} s, the limit: continue the \
         present one, or try again later", kept = PAST_INCARNATIONS_KEPT.as_secs()
    )]
    TooManyIncarnations(String),
    /// Too many streams are open.
    #[error("{limit} streams are open already: try again later")]
    TooManyStreams {
        /// Maximum number of streams.
        limit: usize,
    },
    /// The hub refuses the source.
    #[error(transparent)]
    Hub(#[from] HubError),
}

impl IngestError {
    /// Returns the error code to report to the publisher.
    #[must_use]
    pub const fn code(&self) -> ErrorCode {
        match self {
            // An index may register such a worker later, but an agent never changes its worker.
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

    /// Returns the reason under which the refused stream is counted.
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
