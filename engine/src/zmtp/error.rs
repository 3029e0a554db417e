use std::io;
use std::time::Duration;

use thiserror::Error;

/// Why a connection could not be made, or ended.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum LinkError {
    /// Name resolution or the TCP connection failed.
    #[error("cannot connect to {endpoint}: {source}")]
    Connect {
        /// Where to, as configured.
        endpoint: String,
        /// The system's answer.
        source: io::Error,
    },
    /// The listening socket could not be opened.
    #[error("cannot listen on {endpoint}: {source}")]
    Listen {
        /// Where, as configured.
        endpoint: String,
        /// The system's answer.
        source: io::Error,
    },
    /// The TCP connection was not made in time.
    #[error("no connection to {endpoint} within {after:?}")]
    ConnectTimeout {
        /// Where to, as configured.
        endpoint: String,
        /// The limit that was reached.
        after: Duration,
    },
    /// The peer accepted the connection and did not complete the handshake in time.
    #[error("no handshake within {after:?}")]
    HandshakeTimeout {
        /// The limit that was reached.
        after: Duration,
    },
    /// The peer closed the connection.
    #[error("the peer closed the connection")]
    Closed,
    /// Reading or writing failed, for example after a reset.
    #[error("connection failed: {0}")]
    Io(#[from] io::Error),
    /// The peer sent nothing at all for too long.
    #[error("the peer was silent for {after:?}")]
    Silent {
        /// The limit that was reached.
        after: Duration,
    },
    /// The peer broke the protocol or one of the limits.
    #[error(transparent)]
    Protocol(#[from] ProtocolError),
}

/// What a peer did that the protocol or [`Limits`](super::Limits) forbid.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum ProtocolError {
    /// The first bytes are no ZMTP signature.
    #[error("the peer does not speak ZMTP")]
    Signature,
    /// The peer speaks ZMTP 2 or older.
    #[error("the peer speaks ZMTP {major}, at least 3 is needed")]
    Version {
        /// Announced major version.
        major: u8,
    },
    /// The peer wants a security mechanism.
    #[error("the peer asks for mechanism {name:?}, only NULL is supported")]
    Mechanism {
        /// Announced name, printable part.
        name: String,
    },
    /// The handshake is not a READY command.
    #[error("expected READY in the handshake")]
    NotReady,
    /// A command cannot be read.
    #[error("malformed {command} command")]
    Malformed {
        /// Which command.
        command: &'static str,
    },
    /// The peer's socket does not fit ours.
    #[error("the peer's socket type is {found:?}, expected {expected}")]
    SocketType {
        /// What the peer announced, printable part.
        found: String,
        /// What our socket talks to.
        expected: &'static str,
    },
    /// The peer refused us with an ERROR command.
    #[error("the peer refused the connection: {reason:?}")]
    Refused {
        /// The peer's reason, printable part.
        reason: String,
    },
    /// A frame with reserved flags, or a command that claims to continue.
    #[error("illegal frame flags {flags:#04x}")]
    Flags {
        /// The flag byte.
        flags: u8,
    },
    /// A frame announced more bytes than allowed.
    #[error("a frame of {bytes} bytes, at most {max} are allowed")]
    FrameTooLong {
        /// Announced length.
        bytes: u64,
        /// The limit.
        max: usize,
    },
    /// A command announced more bytes than allowed.
    #[error("a command of {bytes} bytes, at most {max} are allowed")]
    CommandTooLong {
        /// Announced length.
        bytes: u64,
        /// The limit.
        max: usize,
    },
    /// A message of too many bytes.
    #[error("a message of at least {bytes} bytes, at most {max} are allowed")]
    MessageTooLong {
        /// Length so far, the refused frame included.
        bytes: u64,
        /// The limit.
        max: usize,
    },
    /// A message of too many frames.
    #[error("a message of more than {max} frames")]
    TooManyFrames {
        /// The limit.
        max: usize,
    },
    /// The peer does not read what we answer.
    #[error("{bytes} bytes wait for a peer that does not read")]
    NotReading {
        /// Bytes waiting to be written.
        bytes: usize,
    },
}

/// A limit that a peer went beyond.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Excess {
    /// Bytes of a frame.
    FrameBytes,
    /// Bytes of a command.
    CommandBytes,
    /// Bytes of a message, over its frames.
    MessageBytes,
    /// Frames of a message.
    MessageFrames,
    /// Bytes that wait for a peer that does not read.
    UnreadBytes,
}

// === impl Excess ===

impl Excess {
    /// All of them.
    pub const ALL: [Self; 5] = [
        Self::FrameBytes,
        Self::CommandBytes,
        Self::MessageBytes,
        Self::MessageFrames,
        Self::UnreadBytes,
    ];

    /// Its name in metrics.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::FrameBytes => "frame_bytes",
            Self::CommandBytes => "command_bytes",
            Self::MessageBytes => "message_bytes",
            Self::MessageFrames => "message_frames",
            Self::UnreadBytes => "unread_bytes",
        }
    }
}

// === impl LinkError ===

impl LinkError {
    /// The limit that the peer went beyond, if that is why the connection ended.
    #[must_use]
    pub const fn excess(&self) -> Option<Excess> {
        if let Self::Protocol(error) = self { error.excess() } else { None }
    }
}

// === impl ProtocolError ===

impl ProtocolError {
    /// The limit that the peer went beyond, if that is what it did.
    #[must_use]
    pub const fn excess(&self) -> Option<Excess> {
        Some(match self {
            Self::FrameTooLong { .. } => Excess::FrameBytes,
            Self::CommandTooLong { .. } => Excess::CommandBytes,
            Self::MessageTooLong { .. } => Excess::MessageBytes,
            Self::TooManyFrames { .. } => Excess::MessageFrames,
            Self::NotReading { .. } => Excess::UnreadBytes,
            Self::Signature
            | Self::Version { .. }
            | Self::Mechanism { .. }
            | Self::NotReady
            | Self::Malformed { .. }
            | Self::SocketType { .. }
            | Self::Refused { .. }
            | Self::Flags { .. } => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_stay_small() {
        assert!(size_of::<LinkError>() <= 64, "{}", size_of::<LinkError>());
    }
}
