use kvasir_proto::convert::TooManyBlocks;
use kvasir_proto::target::TargetError;
use std::time::Duration;

/// Why there is no answer. None of these is a reason to fail the request that asked: route it
/// without knowledge of caches.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The endpoint can be no address of a server.
    #[error("endpoint {0}")]
    Target(#[from] TargetError),
    /// The shards and replicas that were named cannot be used.
    #[error("{problem}")]
    Topology {
        /// What is wrong with them.
        problem: String,
    },
    /// The prompt has more blocks than a query may have.
    #[error(transparent)]
    TooLong(#[from] TooManyBlocks),
    /// The deadline passed.
    #[error("no answer within {} ms", deadline.as_millis())]
    DeadlineExceeded {
        /// The deadline.
        deadline: Duration,
    },
    /// The server refused, or could not be reached.
    #[error("{} ({:?})", .0.message(), .0.code())]
    Status(#[source] Box<tonic::Status>),
    /// The server answered something that the contract does not allow.
    #[error("malformed answer: {0}")]
    Malformed(String),
}
