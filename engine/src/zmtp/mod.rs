//! A small ZMTP 3 client: one subscription ([`SubSocket`]) or one request stream ([`DealerSocket`])
//! over TCP with the NULL mechanism, built so that no peer can stall or exhaust the process.
//!
//! [`Session`] is the protocol alone: bytes in, events and bytes out, no I/O and no clock.
//! A connection adds the socket, the deadlines and the heartbeats; the two sockets add attaching,
//! back-off and the socket pattern. Nothing is spawned: all I/O happens inside the calls.
//!
//! What a peer may cost is fixed by [`Limits`]. A frame is refused by its header, before any memory
//! is set aside for it, and the input buffer grows only with bytes that really arrived.

mod backoff;
mod connection;
mod dealer;
mod endpoint;
mod error;
mod frame;
mod handshake;
mod heartbeat;
mod limits;
mod session;
mod sub;

#[cfg(test)]
mod fault_test;
#[cfg(test)]
mod interop_test;
#[cfg(test)]
mod session_test;
#[cfg(test)]
mod test_peer;

pub use backoff::Backoff;
pub use dealer::DealerSocket;
pub use endpoint::{Attach, Endpoint, EndpointError};
pub use error::{Excess, LinkError, ProtocolError};
pub use limits::Limits;
pub use session::{Role, Session, SessionEvent};
pub use sub::{SubEvent, SubSocket};

use bytes::Bytes;

/// The frames of one message, at most [`Limits::message_frames_max`] of them.
///
/// Frames share memory with the read buffer they arrived in; a frame retained for long keeps that
/// buffer's chunk (64 KiB, or the frame itself when it is larger) alive.
pub type Message = Vec<Bytes>;
