//! Limits on connections between agents.

use std::time::Duration;

/// Version of the wire format.
pub const VERSION: u32 = 2;
/// Maximum bytes of a frame's message. A decoded message takes less than 100 times that.
pub const MESSAGE_BYTES_MAX: usize = 64 << 10;
/// Maximum sequence hashes of one request, which is the number of blocks that an owner holds per connection.
pub const REQUEST_BLOCKS_MAX: usize = 512;
/// Maximum requests sent before the first one is answered. They fit into the smallest socket buffer, so that the two
/// sides can't block each other.
pub const REQUESTS_AHEAD_MAX: usize = 4;
/// Maximum bytes of an error text.
pub const TEXT_BYTES_MAX: usize = 1 << 10;
/// Maximum ranges that a connection between different layouts copies for each block, at 24 bytes of memory each.
pub const PART_PIECES_MAX: usize = 1 << 18;
/// Maximum bytes of a name: model, tenant, worker, dtype, layout.
pub const NAME_BYTES_MAX: usize = 256;
/// Maximum bytes of the authorization.
pub const AUTHORIZATION_BYTES_MAX: usize = 8 << 10;
/// Bytes read at once where a frame may begin. The rest of a block is read directly into its slot.
pub const HEAD_READ_BYTES: usize = 512;
/// Maximum bytes per socket write, unless one block is larger.
pub const WRITE_BYTES_MAX: usize = 256 << 10;
/// Maximum blocks per socket write.
pub const WRITE_BLOCKS_MAX: usize = 16;
/// Bytes received at once if a slot is not mapped as a slice.
pub const RECEIVE_BYTES_MAX: usize = 256 << 10;
/// Checksums of larger blocks are computed on separate threads, so that they do not delay other tasks.
pub const INLINE_BYTES_MAX: usize = 1 << 20;
/// Blocks onboarded from lower tiers at once for one request.
pub const ONBOARD_BLOCKS_MAX: usize = 32;
/// Maximum bytes of the metadata of an owner's NIXL agent.
pub const NIXL_METADATA_BYTES_MAX: usize = 16 << 10;
/// Requests for loans that a client sends before the first loan is returned; also the loans that an owner keeps per
/// connection.
pub const LOANS_AHEAD_MAX: usize = 2;
/// Maximum loans of one owner, quarantined ones included.
pub const LOANS_MAX: usize = 128;
/// How long an owner keeps the blocks of a loan after its timeout, if the peer did not return it.
pub const LOAN_GRACE: Duration = Duration::from_secs(5);
/// Maximum bytes that one transfer of NIXL reads, unless one block is larger.
pub const READ_BYTES_MAX: usize = 4 << 20;
/// Maximum bytes of an owner's block that NIXL reads for its parts.
pub const STAGED_BLOCK_BYTES_MAX: usize = 64 << 20;
/// Maximum different sizes of such blocks. Each size has memory for [`READ_BYTES_MAX`] bytes, or for one block if that
/// is more. A new size replaces the least recently used size that is not in use.
pub const STAGED_SIZES_MAX: usize = 8;
/// Alignment of the memory for blocks of other sizes.
pub const STAGING_ALIGNMENT: usize = 4_096;
/// Maximum blocks that one transfer of NIXL reads.
pub const READ_BLOCKS_MAX: usize = 64;
/// Maximum transfers that wait for the thread that starts them.
pub const READS_WAITING_MAX: usize = 64;
/// Interval between two polls of the transfers by that thread.
pub const READ_POLL_INTERVAL: Duration = Duration::from_micros(50);
/// Maximum owners whose metadata one NIXL agent has loaded.
pub const READ_PEERS_MAX: usize = 256;
/// Maximum NIXL agents that are no longer used for new transfers and wait for their last ones.
pub const AGENTS_ENDING_MAX: usize = 2;
/// Slots that a fetch allocates at once.
pub const FILL_BLOCKS_MAX: usize = 16;
/// Maximum connections that an owner serves.
pub const SERVED_CONNECTIONS_MAX: usize = 64;
/// Maximum connections to owners, including idle ones.
pub const CLIENT_CONNECTIONS_MAX: usize = 64;
/// Maximum blocks in the set of one owner, so that no owner uses up the limit on all imported blocks.
pub const OWNER_BLOCKS_MAX: u32 = 1 << 24;
/// Maximum idle connections to one owner.
pub const IDLE_CONNECTIONS_MAX: usize = 2;
/// Timeout for hello and welcome.
pub const HELLO_TIMEOUT: Duration = Duration::from_secs(5);
/// A peer that reads nothing for this long while data waits for it is disconnected.
pub const UNTAKEN_TIMEOUT: Duration = Duration::from_secs(10);
/// An owner closes a connection that is idle for this long.
pub const IDLE_TIMEOUT: Duration = Duration::from_secs(120);
/// A client reuses a connection within this time only.
pub const REUSE_TIMEOUT: Duration = Duration::from_secs(60);
const _: () = assert!(REUSE_TIMEOUT.as_secs() < IDLE_TIMEOUT.as_secs());
/// Maximum time for one request, from the first to the last block.
pub const REQUEST_TIMEOUT_MAX: Duration = Duration::from_secs(25);
/// Maximum time for sending a refusal before the connection is closed.
pub const LAST_WORD_TIMEOUT: Duration = Duration::from_secs(1);
