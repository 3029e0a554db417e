use kvasir_proto::pb::{PublishRefusal, RefusalReason};

/// Why a batch is not in the index.
#[derive(Debug, thiserror::Error)]
pub enum UplinkError {
    /// The indexer cannot be reached, or refused the stream.
    #[error("{} ({:?})", .0.message(), .0.code())]
    Status(#[source] Box<tonic::Status>),
    /// The endpoint cannot be used.
    #[error("endpoint cannot be used: {0}")]
    Endpoint(#[source] tonic::transport::Error),
    /// The stream has ended; open a new one.
    #[error("the indexer ended the stream")]
    Closed,
    /// The indexer refused the batch.
    #[error("batch {sequence} refused ({reason:?}): {message}")]
    Refused {
        /// The batch.
        sequence: u64,
        /// Why.
        reason: RefusalReason,
        /// What the indexer wants next.
        expected_sequence: u64,
        /// For people.
        message: String,
    },
    /// The indexer answered something that the contract does not allow.
    #[error("malformed answer: {0}")]
    Malformed(&'static str),
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
