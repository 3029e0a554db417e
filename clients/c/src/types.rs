//! Types of the C API: structures, codes and constants. These comments appear in the header.

use std::ffi::c_char;

/// Memory of the accelerator.
pub const KVASIR_TIER_DEVICE: u32 = 0;
/// Memory of the host.
pub const KVASIR_TIER_HOST: u32 = 1;
/// Disks.
pub const KVASIR_TIER_DISK: u32 = 2;

/// Copy mode set: one removal removes a block, however often it was stored.
pub const KVASIR_COPY_MODE_SET: u32 = 0;
/// Copy mode counted: each store adds a copy and each removal removes one. A block is cached while
/// a copy remains.
pub const KVASIR_COPY_MODE_COUNTED: u32 = 1;

/// Result of a call. For every code but KVASIR_OK, kvasir_last_error has the text.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(non_camel_case_types, reason = "these are the header's names")]
pub enum Code {
    /// Success.
    KVASIR_OK = 0,
    /// An argument is invalid. The error text names it and the valid values. The call had no
    /// effect.
    KVASIR_INVALID_ARGUMENT = 1,
    /// The handle is no publisher, or the publisher was freed. The call had no effect.
    KVASIR_BAD_HANDLE = 2,
    /// No room: the publisher's limit of held blocks, or the limit of open publishers, is reached.
    /// The call had no effect: the event was not accepted.
    KVASIR_FULL = 3,
    /// The publisher was shut down. The call had no effect.
    KVASIR_SHUT_DOWN = 4,
    /// The call timed out. No event is lost: delivery continues.
    KVASIR_TIMEOUT = 5,
    /// The peer refuses the publisher, for example because of a wrong block size. The error text
    /// has the reason. The publisher retries with a backoff of up to 5 s, because the peer's
    /// configuration may be corrected. Events are accepted meanwhile.
    KVASIR_REFUSED = 6,
    /// The system cannot start a thread, or this library has a bug, which is also written to
    /// stderr.
    KVASIR_INTERNAL = 7,
}

/// A publisher, as an opaque handle. Never dereference it.
#[derive(Debug)]
pub struct Publisher {
    _private: [u8; 0],
}

/// Options of a publisher. Set struct_size and the four required fields. In the other fields, 0 and
/// NULL mean the default.
#[repr(C)]
#[derive(Debug)]
pub struct PublisherOptions {
    /// sizeof(kvasir_publisher_options). The library checks by it that header and library match.
    pub struct_size: usize,
    /// Required: host:port, or http://host:port, of the agent's gRPC port (--listen), or of an index.
    pub endpoint: *const c_char,
    /// Required: the worker's id, as configured at the agent (--worker-id). 1 to 256 bytes, like
    /// all names here.
    pub worker_id: *const c_char,
    /// Required: the worker's model.
    pub model: *const c_char,
    /// The worker's tenant; "" by default.
    pub tenant: *const c_char,
    /// Name of this publisher, unique within the worker; "rank-N" by default, with the rank's number.
    pub source: *const c_char,
    /// Required: tokens per block. Must equal the agent's block size.
    pub block_size: u32,
    /// The data-parallel rank that holds the blocks, below 1,024. An engine with several ranks
    /// opens a publisher for each.
    pub dp_rank: u32,
    /// KVASIR_COPY_MODE_SET or KVASIR_COPY_MODE_COUNTED. Must equal the agent's copy mode, unless
    /// the agent consolidates sources.
    pub copy_mode: u32,
    /// For an index only: registers the worker with this lease in milliseconds, 1,000 to 3,600,000,
    /// and removes it at shutdown. 0: the worker is registered elsewhere, for example by an agent.
    pub lease_ms: u32,
    /// Maximum number of held blocks, 44 bytes of memory each; 4,194,304 by default.
    pub held_blocks_max: usize,
    /// Maximum bytes of events retained for a peer that connects late or again; 33,554,432 by
    /// default. A peer that lacks older events receives all held blocks instead, for which twice
    /// their bytes are retained.
    pub journal_bytes_max: usize,
}

/// An image, sound or other multimodal item among the tokens.
#[repr(C)]
#[derive(Debug)]
pub struct Multimodal {
    /// Identifier of the content, 1 to 256 bytes: a hash of 64 hexadecimal digits, or any other
    /// text.
    pub identifier: *const c_char,
    /// Index of the item's first token among the tokens of this call.
    pub start: usize,
    /// Index one past the item's last token.
    pub end: usize,
}

/// Blocks that are now cached, each the parent of the next. Give their content by tokens or by
/// local_hashes. Give neither to add a tier to known blocks.
#[repr(C)]
#[derive(Debug)]
pub struct Stored {
    /// sizeof(kvasir_stored).
    pub struct_size: usize,
    /// The engine's own hashes of the blocks.
    pub names: *const u64,
    /// Number of names, 1 to 65,536.
    pub names_count: usize,
    /// Name of the block before the first; NULL at the start of a prompt.
    pub parent: *const u64,
    /// Token ids: block-size tokens for each name. Hashed before the call returns, and neither
    /// retained nor sent. NULL for none.
    pub tokens: *const u32,
    /// Number of tokens: names_count times the block size.
    pub tokens_count: usize,
    /// Hashes of each block's own tokens, one for each name. NULL for none.
    pub local_hashes: *const u64,
    /// Number of local hashes: names_count.
    pub local_hashes_count: usize,
    /// With tokens: the LoRA adapter's name; NULL for none.
    pub lora_name: *const c_char,
    /// With tokens: the cache salt; NULL for none.
    pub cache_salt: *const c_char,
    /// With tokens: multimodal items among the tokens; NULL for none.
    pub multimodal: *const Multimodal,
    /// Number of multimodal items, at most 1,024.
    pub multimodal_count: usize,
    /// Tier of the blocks: a KVASIR_TIER.
    pub tier: u32,
}

/// State of a publisher.
#[repr(C)]
#[derive(Debug)]
pub struct PublisherStatus {
    /// sizeof(kvasir_publisher_status): set it before the call.
    pub struct_size: usize,
    /// Number of batches so far, and the number of the next batch. An event is one batch, or
    /// several if it is large.
    pub head: u64,
    /// The peer has all batches below this number. If it equals head, the peer has all held blocks.
    pub acknowledged: u64,
    /// Events not accepted for lack of room: each such call returned KVASIR_FULL.
    pub dropped_events: u64,
    /// Block operations that the peer refused, because of its own limit or because the rank belongs
    /// to another source. The index then credits too little.
    pub rejected_blocks: u64,
    /// Blocks held now.
    pub held_blocks: u64,
    /// Streams opened so far.
    pub streams: u64,
    /// Times that the peer lacked events no longer retained, and received all held blocks instead.
    pub retold: u64,
    /// A stream is open.
    pub connected: bool,
    /// The peer refused the stream, for the reason in error. The publisher keeps retrying.
    pub refused: bool,
    /// Why the last stream ended or could not be opened; "" once a stream is accepted. Ends with a
    /// 0 byte, and is truncated to fit.
    pub error: [c_char; 256],
}
