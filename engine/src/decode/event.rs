//! Events as the engine sent them: typed, not yet interpreted.

use kvasir_proto::types::{BlockName, DpRank, LocalHash};

/// One decoded payload. Strings are borrowed from it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Batch<'a> {
    /// Bits of the time stamp as `f64`, whatever number it was sent as.
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
    /// `AllBlocksCleared`, or `TierBlocksCleared`, with the place that it states: none for all places.
    Cleared(Place<'a>),
    /// `BlockTransferred`: blocks that moved to another medium.
    Moved(RawMoved<'a>),
    /// An event of a kind that is not known here, by its name.
    Unknown(&'a str),
    /// A stored or removed object of a store whose key contains no block hash.
    Unnamed,
    /// A stored object that is a part of a block: another object completes the block.
    Component,
    /// An event of a known kind, or none, that cannot be read. The others of its batch are.
    Unreadable(Unreadable),
}

/// `BlockStored`: blocks that are now held, each the parent of the next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RawStored<'a> {
    /// The engine's hashes of the blocks, at most [`EVENT_BLOCKS_MAX`].
    ///
    /// [`EVENT_BLOCKS_MAX`]: kvasir_proto::limits::EVENT_BLOCKS_MAX
    pub names: Vec<BlockName>,
    /// Hash of the block before the first; none at the start of a prompt.
    pub parent: Option<BlockName>,
    /// The tokens of the span the event covers.
    pub tokens: RawTokens,
    /// `local_hashes`: the blocks' local hashes, from a [`Custom`](kvasir_proto::types::EngineKind::Custom) engine that has
    /// no tokens to show.
    pub local_hashes: Option<Vec<LocalHash>>,
    /// Tokens per block, as the event claims.
    pub block_size: u64,
    /// Least and greatest of `num_block_tokens`, where given.
    pub num_block_tokens: Option<(u64, u64)>,
    /// Where the blocks lie.
    pub place: Place<'a>,
    /// Number of the LoRA adapter; 0 is none.
    pub lora_id: Option<u64>,
    /// Name of the LoRA adapter.
    pub lora_name: Option<&'a str>,
    /// Cache salt, stated explicitly.
    pub cache_salt: Option<&'a str>,
    /// `extra_keys`: what besides tokens went into the hashes, untagged.
    pub extra_keys: Option<PerBlock<'a>>,
    /// `block_mm_infos`: multimodal content, stated explicitly.
    pub multimodal: Option<PerBlock<'a>>,
    /// `lookahead_token_ids`: the tokens after each block that its hash covers, too.
    pub look_ahead: Option<Vec<LookAhead>>,
    /// Fields after the tag, where the event is an array: shows the engine's release.
    pub slots: Option<usize>,
}

/// The tokens after a block that its hash covers, too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LookAhead {
    /// The next token.
    Token(u32),
    /// Anything else: several tokens, none, or a token beyond 32 bits.
    Other,
}

/// `BlockRemoved`: one copy less of each name.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RawRemoved<'a> {
    /// The engine's hashes, at most [`EVENT_BLOCKS_MAX`].
    ///
    /// [`EVENT_BLOCKS_MAX`]: kvasir_proto::limits::EVENT_BLOCKS_MAX
    pub names: Vec<BlockName>,
    /// Where they lay.
    pub place: Place<'a>,
    /// `remaining_copy_counts`: copies of each name that remain, where the engine states them.
    pub remaining: Option<Vec<u32>>,
}

/// `BlockTransferred`: one copy of each name moved.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RawMoved<'a> {
    /// The engine's hashes, at most [`EVENT_BLOCKS_MAX`].
    ///
    /// [`EVENT_BLOCKS_MAX`]: kvasir_proto::limits::EVENT_BLOCKS_MAX
    pub names: Vec<BlockName>,
    /// Where the blocks lie now.
    pub place: Place<'a>,
    /// Medium on which the blocks were before.
    pub from: Option<&'a str>,
}

/// Where an event's blocks lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Place<'a> {
    /// Medium, as the engine names it.
    pub medium: Option<&'a str>,
    /// `LOCAL` or `REMOTE`.
    pub locality: Option<&'a str>,
    /// Number of the KV-cache group: layers of a hybrid model that are cached alike.
    pub group: Option<u32>,
    /// Kind of that group, as the engine names it.
    pub kind: Option<&'a str>,
}

/// Tokens of a stored event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RawTokens {
    /// Token ids as little-endian u32: the bytes that are hashed.
    Ids(Vec<u8>),
    /// Token ids of which at least one is beyond 32 bits, as little-endian u64: SGLang puts numbers of 62 bits in the
    /// place of an image's tokens.
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

/// One thing besides tokens that decides what a block holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExtraKey<'a> {
    /// A bare string.
    Text(&'a str),
    /// A bare integer, by bit pattern.
    Number(u64),
    /// Multimodal content, by identifier, with the offset of its first token in the block.
    Item(&'a str, i64),
    /// Multimodal content, by hash.
    ItemHash(u64),
    /// Anything else.
    Unknown,
}

/// An event that cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unreadable {
    /// The field at fault, by the engine's name for it.
    pub field: &'static str,
    /// What is wrong with it.
    pub fault: Fault,
    /// Block operations it announced: its hashes where their number can be read, else 1.
    pub operations: usize,
}

/// What is wrong with a field.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Fault {
    /// A value of another type, or out of its range.
    Type,
    /// The field is required and absent.
    Missing,
    /// More members than its limit.
    TooMany,
    /// A list that should have a member for each name, and has not.
    Length,
}

impl Fault {
    /// Name, as logged.
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
