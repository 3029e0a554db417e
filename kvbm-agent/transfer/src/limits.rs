//! What connections between agents take at most.

use std::time::Duration;

/// Version of the wire format.
pub const VERSION: u32 = 1;
/// Bytes of a frame's message. What is decoded of one takes less than 100 times that.
pub const MESSAGE_BYTES_MAX: usize = 64 << 10;
/// Sequence hashes of one request: blocks that an owner holds at a time for one connection.
pub const REQUEST_BLOCKS_MAX: usize = 512;
/// Requests that are sent before the answer to the first of them has ended. All of them fit into the smallest buffer of a
/// socket, so that neither side waits for the other one to read.
pub const REQUESTS_AHEAD_MAX: usize = 4;
/// Bytes of a text that a peer sends for people.
pub const TEXT_BYTES_MAX: usize = 1 << 10;
/// Bytes of a name: model, tenant, worker, dtype, layout.
pub const NAME_BYTES_MAX: usize = 256;
/// Bytes of what shows who calls.
pub const AUTHORIZATION_BYTES_MAX: usize = 8 << 10;
/// Bytes that are read at a time where a frame may begin: the rest of a block goes straight into its slot.
pub const HEAD_READ_BYTES: usize = 512;
/// Bytes that are handed to a socket at a time, unless one block is larger: in flight outside of the system's buffers.
pub const WRITE_BYTES_MAX: usize = 256 << 10;
/// Blocks that are handed to a socket at a time.
pub const WRITE_BLOCKS_MAX: usize = 16;
/// Bytes that are received at a time where a slot is no slice.
pub const RECEIVE_BYTES_MAX: usize = 256 << 10;
/// Larger blocks are summed up on threads of their own, so that they hold up nobody else.
pub const INLINE_BYTES_MAX: usize = 1 << 20;
/// Blocks that are brought up from lower tiers at a time for one request.
pub const ONBOARD_BLOCKS_MAX: usize = 32;
/// Slots that are taken at a time by who fetches.
pub const FILL_BLOCKS_MAX: usize = 16;
/// Connections that an owner serves at a time.
pub const SERVED_CONNECTIONS_MAX: usize = 64;
/// Connections to owners at a time, those included that wait for their next use.
pub const CLIENT_CONNECTIONS_MAX: usize = 64;
/// Blocks that one owner may have, so that no owner takes the room of the others.
pub const OWNER_BLOCKS_MAX: u32 = 1 << 24;
/// Connections to one owner that wait for their next use.
pub const IDLE_CONNECTIONS_MAX: usize = 2;
/// Longest time until a peer has said who it is, or whom it serves.
pub const HELLO_TIMEOUT: Duration = Duration::from_secs(5);
/// A peer that takes nothing for this long, while bytes wait for it, is disconnected.
pub const UNTAKEN_TIMEOUT: Duration = Duration::from_secs(10);
/// An owner closes a connection on which nothing is asked for this long.
pub const IDLE_TIMEOUT: Duration = Duration::from_secs(120);
/// Who fetches uses a connection again within this time only.
pub const REUSE_TIMEOUT: Duration = Duration::from_secs(60);
const _: () = assert!(REUSE_TIMEOUT.as_secs() < IDLE_TIMEOUT.as_secs());
/// Longest time that one request takes, from its first to its last block.
pub const REQUEST_TIMEOUT_MAX: Duration = Duration::from_secs(25);
/// Longest wait for a peer to take the reason why its connection ends.
pub const LAST_WORD_TIMEOUT: Duration = Duration::from_secs(1);
