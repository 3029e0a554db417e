use std::io;
use std::time::Duration;

use thiserror::Error;

/// Why a connection failed or ended.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum LinkError {
    /// Name resolution or the TCP connection failed.
    #[error("cannot connect to {endpoint}: {source}")]
    Connect {
        /// The configured address.
        endpoint: String,
        /// The system's error.
        source: io::Error,
    },
    /// The listening socket could not be opened.
    #[error("cannot listen on {endpoint}: {source}")]
    Listen {
        /// The configured address.
        endpoint: String,
        /// The system's error.
        source: io::Error,
    },
    /// The TCP connection timed out.
    #[error("no connection to {endpoint} within {after:?}")]
    ConnectTimeout {
        /// The configured address.
        endpoint: String,
        /// The timeout.
        after: Duration,
    },
    /// The peer accepted the connection but did not complete the handshake in time.
    #[error("no handshake within {after:?}")]
    HandshakeTimeout {
        /// The timeout.
        after: Duration,
    },
    /// The peer closed the connection.
    #[error("the peer closed the connection")]
    Closed,
    /// Reading or writing failed, for example after a reset.
    #[error("connection failed: {0}")]
    Io(#[from] io::Error),
    /// The peer sent no bytes for too long.
    #[error("the peer was silent for {after:?}")]
    Silent {
        /// The timeout.
        after: Duration,
    },
    /// The peer broke the protocol or one of the limits.
    #[error(transparent)]
    Protocol(#[from] ProtocolError),
}

/// A violation of the protocol or of [`Limits`](super::Limits) by the peer.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum ProtocolError {
    /// The first bytes are not a ZMTP signature.
    #[error("the peer does not use ZMTP")]
    Signature,
    /// The peer uses ZMTP 2 or older.
    #[error("the peer uses ZMTP {major}, at least 3 is required")]
    Version {
        /// Announced major version.
        major: u8,
    },
    /// The peer requires a security mechanism.
    #[error("the peer asks for mechanism {name:?}, only NULL is supported")]
    Mechanism {
        /// Announced name of the mechanism, printable part.
        name: String,
    },
    /// The handshake is not a READY command.
    #[error("expected READY in the handshake")]
    NotReady,
    /// A command is malformed.
    #[error("malformed {command} command")]
    Malformed {
        /// Name of the command.
        command: &'static str,
    },
    /// The peer's socket type is incompatible.
    #[error("the peer's socket type is {found:?}, expected {expected}")]
    SocketType {
        /// Socket type that the peer announced, printable part.
        found: String,
        /// Compatible socket types.
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
    /// A frame's announced length exceeds the limit.
    #[error("a frame of {bytes} bytes, at most {max} are allowed")]
    FrameTooLong {
        /// Announced length.
        bytes: u64,
        /// The limit.
        max: usize,
    },
    /// A command's announced length exceeds the limit.
    #[error("a command of {bytes} bytes, at most {max} are allowed")]
    CommandTooLong {
        /// Announced length.
        bytes: u64,
        /// The limit.
        max: usize,
    },
    /// A message exceeds the limit of bytes.
    #[error("a message of at least {bytes} bytes, at most {max} are allowed")]
    MessageTooLong {
        /// Length so far, the refused frame included.
        bytes: u64,
        /// The limit.
        max: usize,
    },
    /// A message exceeds the limit of frames.
    #[error("a message of more than {max} frames")]
    TooManyFrames {
        /// The limit.
        max: usize,
    },
    /// The peer does not read our replies.
    #[error("{bytes} bytes wait for a peer that does not read")]
    NotReading {
        /// Bytes waiting to be written.
        bytes: usize,
    },
}

/// A limit that a peer exceeded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Excess {
    /// Bytes of a frame.
    FrameBytes,
    /// Bytes of a command.
    CommandBytes,
    /// Bytes of a message, summed over its frames.
    MessageBytes,
    /// Frames of a message.
    MessageFrames,
    /// Bytes waiting for a peer that does not read.
    UnreadBytes,
}

// === impl Excess ===

impl Excess {
    /// All limits.
    pub const ALL: [Self; 5] = [
        Self::FrameBytes,
        Self::CommandBytes,
        Self::MessageBytes,
        Self::MessageFrames,
        Self::UnreadBytes,
    ];

    /// Name of the limit in metrics.
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
    /// The exceeded limit, if the connection ended because of one.
    #[must_use]
    pub const fn excess(&self) -> Option<Excess> {
        if let Self::Protocol(error) = self { error.excess() } else { None }
    }
}

// === impl ProtocolError ===

impl ProtocolError {
    /// The exceeded limit, if the violation is one.
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
