//! The restricted set of error codes of all services, and its table to gRPC status.

/// What kind of failure a service reports. Deliberately few: a client can act on each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ErrorCode {
    /// The request itself is wrong; the message names the field. Do not retry.
    InvalidArgument,
    /// The named thing does not exist.
    NotFound,
    /// The request contradicts the server's state: block size, hash scheme, other registration.
    FailedPrecondition,
    /// A named limit was reached.
    ResourceExhausted,
    /// A concurrent change interrupted the operation; retry it from the beginning.
    Aborted,
    /// The server is starting or stopping; retry elsewhere or later.
    Unavailable,
    /// A fault of the server.
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
