use super::kind::Kind;
use std::io;

/// Why a peer's bytes can't be used. The connection is closed then.
#[derive(Debug, thiserror::Error)]
pub enum WireError {
    /// No frame begins here.
    #[error("magic: the peer does not speak this protocol")]
    Magic,
    /// A kind that is not known.
    #[error("kind {0} is not known")]
    Kind(u8),
    /// Bytes that must be 0.
    #[error("reserved bytes are not 0")]
    Reserved,
    /// A message longer than any.
    #[error("the message has {bytes} bytes, the limit is {max}")]
    MessageBytes {
        /// Its bytes.
        bytes: u64,
        /// The limit.
        max: u64,
    },
    /// A payload of another size than the frame's.
    #[error("{kind:?} has a payload of {bytes} bytes, must be {expected}")]
    PayloadBytes {
        /// The frame.
        kind: Kind,
        /// Its bytes.
        bytes: u64,
        /// What it must have.
        expected: u64,
    },
    /// The message is no protobuf.
    #[error("{kind:?}: {error}")]
    Protobuf {
        /// The frame.
        kind: Kind,
        /// Why not.
        error: prost::DecodeError,
    },
    /// A field that can't be.
    #[error("{field} {why}")]
    Field {
        /// The field.
        field: &'static str,
        /// What is wrong with it.
        why: String,
    },
    /// An unexpected frame.
    #[error("{found:?} was sent in the place of {expected:?}")]
    Unexpected {
        /// What was sent.
        found: Kind,
        /// What was expected.
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
    /// A field that can't be.
    pub fn field(field: &'static str, why: impl Into<String>) -> Self {
        Self::Field { field, why: why.into() }
    }

    /// Whether the connection is gone, rather than its bytes wrong.
    #[must_use]
    pub const fn is_lost(&self) -> bool {
        matches!(self, Self::Closed | Self::Io(_))
    }
}
