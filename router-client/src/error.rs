use kvasir_proto::convert::TooManyBlocks;
use kvasir_tls::DialError;
use std::time::Duration;

/// Why a question was not answered. Do not fail the request that is to be routed for any of these: route
/// it without cache information.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The endpoint is not a valid server address, or needs TLS that is not configured.
    #[error("endpoint {0}")]
    Target(#[from] DialError),
    /// The configured shards and replicas cannot be used.
    #[error("{problem}")]
    Topology {
        /// What is wrong with them.
        problem: String,
    },
    /// The prompt has more blocks than a query may have.
    #[error(transparent)]
    TooLong(#[from] TooManyBlocks),
    /// The server did not answer within the deadline.
    #[error("no answer within {} ms", deadline.as_millis())]
    DeadlineExceeded {
        /// The deadline.
        deadline: Duration,
    },
    /// The server refused, or could not be reached.
    #[error("{} ({:?})", .0.message(), .0.code())]
    Status(#[source] Box<tonic::Status>),
    /// The answer violates the contract.
    #[error("malformed answer: {0}")]
    Malformed(String),
}
