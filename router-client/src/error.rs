use kvasir_proto::convert::TooManyBlocks;
use kvasir_tls::DialError;
use std::time::Duration;
use tonic::Code;

/// Why a query has no answer. Do not fail the request because of this error: route it without cache information.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The endpoint is not a valid server address, or needs TLS that is not configured.
    #[error("endpoint {0}")]
    Target(#[from] DialError),
    /// The configured shards and replicas are unusable.
    #[error("{problem}")]
    Topology {
        /// What is wrong with the configured shards and replicas.
        problem: String,
    },
    /// The prompt has more blocks than a query may contain.
    #[error(transparent)]
    TooLong(#[from] TooManyBlocks),
    /// The server did not answer within the deadline.
    #[error("no answer within {} ms", deadline.as_millis())]
    DeadlineExceeded {
        /// The deadline that has passed.
        deadline: Duration,
    },
    /// The server refused, or could not be reached.
    #[error("{} ({:?})", .0.message(), .0.code())]
    Status(#[source] Box<tonic::Status>),
    /// The answer violates the contract.
    #[error("malformed answer: {0}")]
    Malformed(String),
}

impl ClientError {
    /// Whether the server will refuse the call again: it lacks the call, or the identity lacks the right to it.
    #[must_use]
    pub fn is_refusal(&self) -> bool {
        let Self::Status(status) = self else { return false };
        matches!(status.code(), Code::PermissionDenied | Code::Unimplemented)
    }
}
