//! Decoded events as the engine sent them: typed, not yet interpreted.

use kvasir_proto::types::{BlockName, DpRank, LocalHash};

/// One decoded payload. Its strings are borrowed from the payload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Batch<'a> {
    /// Bits of the time stamp as `f64`, whichever number type the engine sent.
    pub ts_bits: u64,
    /// Rank that the batch names.
    pub rank: Option<DpRank>,
    /// The events, in order.
    pub events: Vec<RawEvent<'a>>,
}

/// One event of a batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RawEvent<'a> {
    /// `BlockStored`.
    Stored(Box<RawStored<'a>>),
    /// `BlockRemoved`.
    Removed(RawRemoved<'a>),
    /// `AllBlocksCleared`, or `TierBlocksCleared`, with the place that the event states. An empty place means
    /// all places.
    Cleared(Place<'a>),
    /// `BlockTransferred`: blocks that moved to another medium.
    Moved(RawMoved<'a>),
    /// An event of an unknown kind, with the name of the kind.
    Unknown(&'a str),
    /// A stored or removed object of a shared store whose key contains no block hash.
    Unnamed,
    /// A stored object of a shared store, which may be one of several parts of a block. Its removal removes the block.
    StoredObject(Box<RawStored<'a>>),
    /// An unreadable event, of a known kind or without a kind. The other events of the batch are still read.
    Unreadable(Unreadable),
}

/// `BlockStored`: blocks that are now cached, each the parent of the next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RawStored<'a> {
    /// The engine's hashes of the blocks, at most [`EVENT_BLOCKS_MAX`].
    ///
    /// [`EVENT_BLOCKS_MAX`]: kvasir_proto::limits::EVENT_BLOCKS_MAX
    pub names: Vec<BlockName>,
    /// Hash of the block before the first one; `None` at the start of a prompt.
    pub parent: Option<BlockName>,
    /// Tokens of all blocks of the event, in order.
    pub tokens: RawTokens,
    /// `local_hashes`: the blocks' local hashes, from a [`Custom`](kvasir_proto::types::EngineKind::Custom)
    /// engine that does not send tokens.
    pub local_hashes: Option<Vec<LocalHash>>,
    /// Tokens per block, as the event states.
    pub block_size: u64,
    /// Minimum and maximum of `num_block_tokens`, if the event states it.
    pub num_block_tokens: Option<(u64, u64)>,
    /// Where the blocks are cached.
    pub place: Place<'a>,
    /// Tokens of the group's sliding window, if the event states it.
    pub window: Option<u64>,
    /// Number of the LoRA adapter; 0 means no adapter.
    pub lora_id: Option<u64>,
    /// Name of the LoRA adapter.
    pub lora_name: Option<&'a str>,
    /// Cache salt, if the event states it in a field of its own.
    pub cache_salt: Option<&'a str>,
    /// `extra_keys`: the untagged inputs of the block hashes besides the tokens.
    pub extra_keys: Option<PerBlock<'a>>,
    /// `block_mm_infos`: multimodal content, in a field of its own.
    pub multimodal: Option<PerBlock<'a>>,
    /// `lookahead_token_ids`: for each block, the tokens after the block that its hash also covers.
    pub look_ahead: Option<Vec<LookAhead>>,
    /// Number of fields after the tag, if the event is an array. It indicates the engine's version.
    pub slots: Option<usize>,
}

/// The tokens after a block that the block's hash also covers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LookAhead {
    /// The next token.
    Token(u32),
    /// Anything else: several tokens, none, or a token beyond 32 bits.
    Other,
}

/// `BlockRemoved`: removes one copy of each name.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RawRemoved<'a> {
    /// The engine's hashes, at most [`EVENT_BLOCKS_MAX`].
    ///
    /// [`EVENT_BLOCKS_MAX`]: kvasir_proto::limits::EVENT_BLOCKS_MAX
    pub names: Vec<BlockName>,
    /// Where the removed copies were.
    pub place: Place<'a>,
    /// `remaining_copy_counts`: number of copies of each name that remain, if the engine states it.
    pub remaining: Option<Vec<u32>>,
}

/// `BlockTransferred`: one copy of each name moved to another medium.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RawMoved<'a> {
    /// The engine's hashes, at most [`EVENT_BLOCKS_MAX`].
    ///
    /// [`EVENT_BLOCKS_MAX`]: kvasir_proto::limits::EVENT_BLOCKS_MAX
    pub names: Vec<BlockName>,
    /// Where the blocks are now.
    pub place: Place<'a>,
    /// Medium on which the blocks were before.
    pub from: Option<&'a str>,
}

/// Where an event's blocks are cached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Place<'a> {
    /// Medium, as the engine names it.
    pub medium: Option<&'a str>,
    /// `LOCAL` or `REMOTE`.
    pub locality: Option<&'a str>,
    /// Number of the KV-cache group. A group is a set of layers of a hybrid model with the same caching
    /// rules.
    pub group: Option<u32>,
    /// Kind of the group, as the engine names it.
    pub kind: Option<&'a str>,
}

/// Tokens of a stored event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RawTokens {
    /// Token ids as little-endian u32: the bytes that are hashed.
    Ids(Vec<u8>),
    /// Token ids as little-endian u64, because at least one exceeds 32 bits: SGLang puts numbers of 62 bits
    /// in the place of an image's tokens.
    Wide(Vec<u8>),
    /// Pairs of tokens, as SGLang sends them with EAGLE.
    Pairs,
}

/// A list with one entry per block, flattened.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PerBlock<'a> {
    /// Number of entries; an entry may be empty.
    pub blocks: usize,
    /// (block, key), ascending by block.
    pub keys: Vec<(u32, ExtraKey<'a>)>,
}

/// One input of a block's hash besides its tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExtraKey<'a> {
    /// A string without a tag.
    Text(&'a str),
    /// An integer without a tag, as its 64-bit pattern.
    Number(u64),
    /// Multimodal content: its identifier, and the offset of its first token in the block.
    Item(&'a str, i64),
    /// Multimodal content, by its hash.
    ItemHash(u64),
    /// A value of any other form.
    Unknown,
}

/// An event that cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unreadable {
    /// The engine's name of the invalid field.
    pub field: &'static str,
    /// Why the field is invalid.
    pub fault: Fault,
    /// Block operations of the event: its number of hashes if that is readable, else 1.
    pub operations: usize,
}

/// Why a field is invalid.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Fault {
    /// The value has another type or is out of range.
    Type,
    /// A required field is absent.
    Missing,
    /// The list has more members than its limit.
    TooMany,
    /// The list must have one member per name, and has another number.
    Length,
}

impl Fault {
    /// Text for log lines.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Type => "wrong type or range",
            Self::Missing => "missing",
            Self::TooMany => "too many members",
            Self::Length => "not one for each name",
        }
    }
}
