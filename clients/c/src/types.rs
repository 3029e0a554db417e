//! What crosses the boundary. These comments are the header's.

use std::ffi::c_char;

/// Memory of the accelerator.
pub const KVASIR_TIER_DEVICE: u32 = 0;
/// Memory of the host.
pub const KVASIR_TIER_HOST: u32 = 1;
/// Disks.
pub const KVASIR_TIER_DISK: u32 = 2;

/// Storing a block says that it is held, removing it that it is not, however often it was stored.
pub const KVASIR_COPY_MODE_SET: u32 = 0;
/// Storing a block is one more copy of it, removing it one less; it is held while there is one.
pub const KVASIR_COPY_MODE_COUNTED: u32 = 1;

/// What a call comes to. Of any but KVASIR_OK, kvasir_last_error has the text.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(non_camel_case_types, reason = "these are the header's names")]
pub enum Code {
    /// Done.
    KVASIR_OK = 0,
    /// An argument cannot be used; the text names it, and what to give. Nothing was done.
    KVASIR_INVALID_ARGUMENT = 1,
    /// This is no publisher, or it was freed. Nothing was done.
    KVASIR_BAD_HANDLE = 2,
    /// There is no room: as many blocks are held as the publisher may remember, or as many publishers are
    /// open as may be. Nothing was done, and no event is lost in silence: this event was not taken.
    KVASIR_FULL = 3,
    /// The publisher was shut down. Nothing was done.
    KVASIR_SHUT_DOWN = 4,
    /// The time was over first. Nothing is lost by it: what was published is still on its way.
    KVASIR_TIMEOUT = 5,
    /// The other side refuses the publisher, for a wrong block size, say; the text has its reason. It
    /// is tried again, every 5 s at last, since it may be the other side that is wrong and is mended:
    /// events are taken meanwhile.
    KVASIR_REFUSED = 6,
    /// The system has no thread for us, or this library has a fault, which is also written to stderr.
    KVASIR_INTERNAL = 7,
}

/// A publisher. Only its address means something, and only to this library.
#[derive(Debug)]
pub struct Publisher {
    _private: [u8; 0],
}

/// Who publishes, and where to. Set struct_size, the four that are required, and what you need of the
/// rest: 0 and NULL mean the default.
#[repr(C)]
#[derive(Debug)]
pub struct PublisherOptions {
    /// sizeof(kvasir_publisher_options): tells that header and library fit each other.
    pub struct_size: usize,
    /// Required: host:port, or http://host:port, of the agent's gRPC port (--listen), or of an index.
    pub endpoint: *const c_char,
    /// Required: the worker, as the agent knows it (--worker-id). 1 to 256 bytes, as all names here.
    pub worker_id: *const c_char,
    /// Required: its model.
    pub model: *const c_char,
    /// Its tenant; "" by default.
    pub tenant: *const c_char,
    /// Name of this publisher, unique within the worker; "rank-N" by default, with the rank's number.
    pub source: *const c_char,
    /// Required: tokens per block. Another than the agent's is refused.
    pub block_size: u32,
    /// The data-parallel rank that holds the blocks, below 1,024. An engine with several has a publisher for
    /// each.
    pub dp_rank: u32,
    /// KVASIR_COPY_MODE_SET or KVASIR_COPY_MODE_COUNTED; the agent's, if it is not configured to
    /// consolidate.
    pub copy_mode: u32,
    /// For an index only: the worker is registered there, with this lease in milliseconds, 1,000 to
    /// 3,600,000, and removed at shutdown. 0: it is registered elsewhere, such as by an agent.
    pub lease_ms: u32,
    /// Most blocks that are remembered as held, 44 bytes each; 4,194,304 by default.
    pub held_blocks_max: usize,
    /// Most bytes of events that are retained, for a peer that connects late or again; 33,554,432 by default.
    /// A peer that lacks more is sent all that is held instead, for which twice the bytes of that are retained.
    pub journal_bytes_max: usize,
}

/// What is in a picture, a sound or the like among the tokens.
#[repr(C)]
#[derive(Debug)]
pub struct Multimodal {
    /// What identifies the content, 1 to 256 bytes: its hash in 64 hexadecimal digits, or any other text.
    pub identifier: *const c_char,
    /// Its first token, by its place among the tokens of this call.
    pub start: usize,
    /// One past its last token.
    pub end: usize,
}

/// Blocks that are now held, each the parent of the next. What is in them is given by tokens, or by
/// local_hashes, or not at all where the names are known and now lie in one more tier.
#[repr(C)]
#[derive(Debug)]
pub struct Stored {
    /// sizeof(kvasir_stored).
    pub struct_size: usize,
    /// The engine's own hashes of the blocks.
    pub names: *const u64,
    /// How many, 1 to 65,536.
    pub names_count: usize,
    /// The block before the first; NULL at the start of a prompt.
    pub parent: *const u64,
    /// Token ids, a block size for each name. They are hashed before the call returns, and neither
    /// retained nor sent. NULL for none.
    pub tokens: *const u32,
    /// How many: names_count times the block size.
    pub tokens_count: usize,
    /// Hashes of the blocks' tokens by themselves, one for each name. NULL for none.
    pub local_hashes: *const u64,
    /// How many: names_count.
    pub local_hashes_count: usize,
    /// With tokens: the LoRA adapter's name; NULL for none.
    pub lora_name: *const c_char,
    /// With tokens: the cache salt; NULL for none.
    pub cache_salt: *const c_char,
    /// With tokens: multimodal content among them; NULL for none.
    pub multimodal: *const Multimodal,
    /// How many, at most 1,024.
    pub multimodal_count: usize,
    /// Where the blocks lie: a KVASIR_TIER.
    pub tier: u32,
}

/// State of a publisher.
#[repr(C)]
#[derive(Debug)]
pub struct PublisherStatus {
    /// sizeof(kvasir_publisher_status): set it before the call.
    pub struct_size: usize,
    /// Batches so far, numbered from 0: the next has this number. An event is one batch, or several if
    /// it is large.
    pub head: u64,
    /// The other side has all batches below this number, and with them all that is held, if it is head.
    pub acknowledged: u64,
    /// Events that were not taken since there was no room: each such call returned KVASIR_FULL.
    pub dropped_events: u64,
    /// Block operations that the other side did not take, for a limit of its own or because the rank is
    /// another source's: the index credits less.
    pub rejected_blocks: u64,
    /// Blocks held now.
    pub held_blocks: u64,
    /// Streams opened so far.
    pub streams: u64,
    /// Times that the other side lacked more than was retained, and was sent all that is held.
    pub retold: u64,
    /// A stream is open.
    pub connected: bool,
    /// It was refused, for the reason in error; it is tried again all the same.
    pub refused: bool,
    /// Why the last stream ended or could not be opened; "" once one is accepted. Ends with a 0 byte, and
    /// is cut to fit.
    pub error: [c_char; 256],
}
