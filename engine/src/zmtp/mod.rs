//! A small ZMTP 3 client: one subscription ([`SubSocket`]) or one request stream ([`DealerSocket`]) over TCP
//! with the NULL mechanism. A peer cannot stall the process or exhaust its memory.
//!
//! [`Session`] implements only the protocol: bytes in, events and bytes out, without I/O or a clock. A
//! connection adds the socket, the deadlines and the heartbeats. The two sockets add connecting or listening,
//! backoff, and the socket pattern. No tasks are spawned: all I/O happens inside the calls.
//!
//! [`Limits`] bound the cost of a peer. A frame is rejected by its header, before memory is allocated for it.
//! The input buffer grows only with received bytes.

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

/// The frames of one message, at most [`Limits::message_frames_max`].
///
/// Frames share memory with their read buffer. A long-lived frame keeps the buffer's chunk alive (64 KiB, or
/// the frame itself if it is larger).
pub type Message = Vec<Bytes>;
