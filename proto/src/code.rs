//! The error codes that all services use, and their mapping to gRPC status codes.

/// The kind of failure that a service reports. The list is short: a client can act on each code.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ErrorCode {
    /// The request itself is wrong; the message names the field. Do not retry.
    InvalidArgument,
    /// The requested worker, model or other object does not exist.
    NotFound,
    /// The request contradicts the server's state: block size, hash scheme, other registration.
    FailedPrecondition,
    /// A limit was reached; the message names it.
    ResourceExhausted,
    /// A concurrent change interrupted the operation; retry it from the beginning.
    Aborted,
    /// The server is starting or stopping; retry elsewhere or later.
    Unavailable,
    /// A bug in the server.
    Internal,
}

impl ErrorCode {
    /// The gRPC status code, as the number the protocol defines.
    #[must_use]
    pub const fn grpc(self) -> i32 {
        match self {
            Self::InvalidArgument => 3,
            Self::NotFound => 5,
            Self::ResourceExhausted => 8,
            Self::FailedPrecondition => 9,
            Self::Aborted => 10,
            Self::Internal => 13,
            Self::Unavailable => 14,
        }
    }
}

#[cfg(feature = "grpc")]
impl From<ErrorCode> for tonic::Code {
    fn from(code: ErrorCode) -> Self {
        Self::from_i32(code.grpc())
    }
}
