use kvasir_proto::pb::{PublishRefusal, RefusalReason};
use kvasir_tasks::causes::causes;
use kvasir_tls::DialError;
use std::error::Error;
use std::time::Duration;
use tonic::{Code, Status};

/// Why a batch is not in the index.
#[derive(Debug, thiserror::Error)]
pub enum UplinkError {
    /// The indexer cannot be reached, or refused the stream.
    #[error("{} ({:?})", text_of(.0), .0.code())]
    Status(Box<Status>),
    /// The endpoint cannot be an address of an index.
    #[error("endpoint {0}")]
    Target(DialError),
    /// The endpoint cannot be reached.
    #[error("cannot be reached: {0}")]
    Endpoint(DialError),
    /// The server does not register workers.
    #[error("workers are not registered there: an agent registers its worker by itself")]
    NoRegistry,
    /// The stream has ended; open a new one.
    #[error("the indexer ended the stream")]
    Closed,
    /// The indexer refused the batch.
    #[error("refused ({}): {message}", reason.as_str_name())]
    Refused {
        /// Number of the batch; 0 if the stream is refused, whichever batch comes next.
        sequence: u64,
        /// Reason of the refusal.
        reason: RefusalReason,
        /// Number that the indexer expects next.
        expected_sequence: u64,
        /// Message for people.
        message: String,
    },
    /// The answer to an earlier batch was not awaited. Whether the index has that batch is unknown; open a new stream.
    #[error("an earlier batch was abandoned before its answer: open a new stream")]
    Abandoned,
    /// The incarnation's numbers are used up.
    #[error("the sequence numbers of this incarnation are used up: begin a new incarnation")]
    Exhausted,
    /// The index has batches of this incarnation that the journal never numbered.
    #[error(
        "the index has batch {applied} of this incarnation, the journal ends at {head:?}: begin a new \
         incarnation when the journal is lost"
    )]
    AheadOfJournal {
        /// Last batch that the index has applied.
        applied: u64,
        /// Last batch of the journal.
        head: Option<u64>,
    },
    /// The indexer took too long to answer.
    #[error("no answer within {0:?}")]
    Silent(Duration),
    /// The indexer sent an answer that the contract does not allow.
    #[error("malformed answer: {0}")]
    Malformed(&'static str),
}

/// The message of a status, and its causes.
fn text_of(status: &Status) -> String {
    let cause = status.source().map(causes).filter(|cause| !status.message().contains(cause));
    cause.map_or_else(|| status.message().to_owned(), |it| format!("{}: {it}", status.message()))
}

impl From<DialError> for UplinkError {
    fn from(error: DialError) -> Self {
        match error {
            DialError::Target(_) | DialError::NoAuthority(_) => Self::Target(error),
            DialError::Transport(_) | DialError::Stream(_) => Self::Endpoint(error),
        }
    }
}

impl UplinkError {
    /// Whether the peer will refuse again until it or the source is configured differently.
    #[must_use]
    pub fn is_refusal(&self) -> bool {
        match self {
            Self::Status(status) => matches!(
                status.code(),
                Code::InvalidArgument
                    | Code::FailedPrecondition
                    | Code::Unimplemented
                    | Code::Unauthenticated
                    | Code::PermissionDenied
            ),
            Self::Refused { reason, .. } => *reason == RefusalReason::Invalid,
            Self::NoRegistry | Self::Target(_) => true,
            Self::Endpoint(_)
            | Self::Closed
            | Self::Abandoned
            | Self::Exhausted
            | Self::AheadOfJournal { .. }
            | Self::Silent(_)
            | Self::Malformed(_) => false,
        }
    }
}

impl UplinkError {
    /// Whether another stream has taken over the source (fencing), or the worker was removed.
    #[must_use]
    pub fn is_fenced(&self) -> bool {
        matches!(self, Self::Refused { reason: RefusalReason::Fenced, .. })
    }
}

impl From<PublishRefusal> for UplinkError {
    fn from(refusal: PublishRefusal) -> Self {
        Self::Refused {
            sequence: refusal.sequence,
            reason: refusal.reason(),
            expected_sequence: refusal.expected_sequence,
            message: refusal.message,
        }
    }
}
