use super::kind::Kind;
use std::io;

/// Why a peer's bytes are invalid. The connection is closed then.
#[derive(Debug, thiserror::Error)]
pub enum WireError {
    /// The bytes do not begin with the magic of a frame.
    #[error("magic: the peer uses another protocol")]
    Magic,
    /// The kind of frame is unknown.
    #[error("kind {0} is not known")]
    Kind(u8),
    /// Reserved bytes are not 0.
    #[error("reserved bytes are not 0")]
    Reserved,
    /// The message is too long.
    #[error("the message has {bytes} bytes, the limit is {max}")]
    MessageBytes {
        /// Length of the message.
        bytes: u64,
        /// The limit.
        max: u64,
    },
    /// The payload's size differs from the size that the frame requires.
    #[error("{kind:?} has a payload of {bytes} bytes, must be {expected}")]
    PayloadBytes {
        /// Kind of the frame.
        kind: Kind,
        /// Size of the payload.
        bytes: u64,
        /// Required size.
        expected: u64,
    },
    /// The message is not valid protobuf.
    #[error("{kind:?}: {error}")]
    Protobuf {
        /// Kind of the frame.
        kind: Kind,
        /// The decoding error.
        error: prost::DecodeError,
    },
    /// A field has an invalid value.
    #[error("{field} {why}")]
    Field {
        /// The field.
        field: &'static str,
        /// What is wrong with it.
        why: String,
    },
    /// A frame of another kind was expected.
    #[error("{found:?} was sent in the place of {expected:?}")]
    Unexpected {
        /// Kind of the received frame.
        found: Kind,
        /// Kind of the expected frame.
        expected: Kind,
    },
    /// The connection ended.
    #[error("the peer closed the connection")]
    Closed,
    /// The connection failed.
    #[error("{0}")]
    Io(#[from] io::Error),
}

impl WireError {
    /// Creates the error for an invalid field.
    pub fn field(field: &'static str, why: impl Into<String>) -> Self {
        Self::Field { field, why: why.into() }
    }

    /// Whether the connection failed, as opposed to invalid bytes.
    #[must_use]
    pub const fn is_lost(&self) -> bool {
        matches!(self, Self::Closed | Self::Io(_))
    }
}
