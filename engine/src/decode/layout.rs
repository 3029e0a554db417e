//! Layouts: the fields of each event kind, by position and by key.

use super::reader::Value;
use kvasir_proto::types::EngineKind;

/// Key of the event's kind in a map. In an array, the kind is the first member.
pub(super) const TAG: &str = "type";
/// Key of the event's kind in RFC #1527. If an event has both keys, `type` takes precedence: the event then
/// also has the engines' own names of its fields, as aliases.
const RFC_TAG: &str = "event_type";

/// The naming scheme of a map's keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Dialect {
    /// The engines' own names.
    Engine,
    /// Mooncake's RFC #1527 ("KV events API standardization"), as `mooncake_master` publishes it
    /// without legacy aliases.
    ///
    /// Some keys are skipped:
    /// - `backend_id`, `tenant_id`, `model_name` and `dp_rank` of an event: the registration states whose
    ///   blocks these are, and the batch states the rank. A publisher of several tenants or backends cannot
    ///   be one source.
    /// - `base_block_idx`: a position without its tokens does not place a block.
    ///
    /// If `token_ids` is nil, as from a store that does not keep tokens, queries cannot match the blocks by
    /// content. Their names are stored, and count as another tier of blocks that an engine announced to the
    /// same source under the same hashes.
    ///
    /// `object_key`, the name of an object of the store, is parsed for its hash if the event has no hashes.
    Rfc1527,
}

impl Dialect {
    /// The naming scheme whose tag is `key`; `None` if `key` is not a tag.
    pub(super) fn of_tag(key: &[u8]) -> Option<Self> {
        if key == TAG.as_bytes() {
            Some(Self::Engine)
        } else if key == RFC_TAG.as_bytes() {
            Some(Self::Rfc1527)
        } else {
            None
        }
    }
}

/// Kind of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Tag {
    Stored,
    Removed,
    /// All blocks, or the blocks on one medium.
    Cleared,
    /// The blocks on one medium, which the event must state.
    TierCleared,
    Moved,
    Unknown,
}

impl Tag {
    /// The kind that a value states, with the kind's name; `None` if the value is not a string.
    pub(super) fn from_value(value: Value<'_>, dialect: Dialect) -> Option<(Self, &str)> {
        let Value::Text(name) = value else {
            return None;
        };
        let tag = match (dialect, name) {
            (Dialect::Engine, b"BlockStored") | (Dialect::Rfc1527, b"stored") => Self::Stored,
            (Dialect::Engine, b"BlockRemoved") | (Dialect::Rfc1527, b"removed") => Self::Removed,
            (Dialect::Engine, b"AllBlocksCleared") | (Dialect::Rfc1527, b"cleared") => {
                Self::Cleared
            }
            (Dialect::Engine, b"TierBlocksCleared") => Self::TierCleared,
            (Dialect::Engine, b"BlockTransferred") => Self::Moved,
            _ => Self::Unknown,
        };
        Some((tag, str::from_utf8(name).unwrap_or(UNREADABLE_KIND)))
    }

    /// Fields after the tag, if the event is an array.
    pub(super) const fn slots(self) -> &'static [Option<Field>] {
        match self {
            Self::Stored => &STORED_SLOTS,
            Self::Removed => &REMOVED_SLOTS,
            Self::Cleared | Self::TierCleared => &CLEARED_SLOTS,
            Self::Moved => &MOVED_SLOTS,
            Self::Unknown => &[],
        }
    }
}

/// Placeholder for the name of a kind that is not valid UTF-8.
const UNREADABLE_KIND: &str = "(no UTF-8)";

/// A field that is decoded. All other fields are skipped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Field {
    Names,
    Parent,
    Tokens,
    LocalHashes,
    BlockSize,
    NumBlockTokens,
    LoraId,
    LoraName,
    CacheSalt,
    Medium,
    Locality,
    Group,
    Kind,
    Window,
    ExtraKeys,
    Multimodal,
    RemainingCopies,
    LookAhead,
    From,
    ObjectKey,
}

/// Fields of `BlockStored` after its tag. Engines may send only the first ones.
const STORED_SLOTS: [Option<Field>; 12] = [
    Some(Field::Names),
    Some(Field::Parent),
    Some(Field::Tokens),
    Some(Field::BlockSize),
    Some(Field::LoraId),
    Some(Field::Medium),
    Some(Field::LoraName),
    Some(Field::ExtraKeys),
    Some(Field::Group),
    Some(Field::Kind),
    Some(Field::Window),
    Some(Field::Locality),
];

/// Fields of `BlockRemoved` after its tag; `None` marks a skipped slot.
const REMOVED_SLOTS: [Option<Field>; 6] = [
    Some(Field::Names),
    Some(Field::Medium),
    Some(Field::Group),
    Some(Field::Kind),
    None,
    Some(Field::Locality),
];

/// Fields after the tag of `AllBlocksCleared` (as ROCm's ATOM sends them) and of `TierBlocksCleared`.
const CLEARED_SLOTS: [Option<Field>; 1] = [Some(Field::Medium)];

/// Fields of `BlockTransferred` after its tag, as ROCm's ATOM sends them.
const MOVED_SLOTS: [Option<Field>; 4] =
    [Some(Field::Names), Some(Field::From), Some(Field::Medium), Some(Field::Group)];

impl Field {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Names => "block_hashes",
            Self::Parent => "parent_block_hash",
            Self::Tokens => "token_ids",
            Self::LocalHashes => "local_hashes",
            Self::BlockSize => "block_size",
            Self::NumBlockTokens => "num_block_tokens",
            Self::LoraId => "lora_id",
            Self::LoraName => "lora_name",
            Self::CacheSalt => "cache_salt",
            Self::Medium => "medium",
            Self::Locality => "locality",
            Self::Group => "group_idx",
            Self::Kind => "kv_cache_spec_kind",
            Self::Window => "kv_cache_spec_sliding_window",
            Self::ExtraKeys => "extra_keys",
            Self::Multimodal => "block_mm_infos",
            Self::RemainingCopies => "remaining_copy_counts",
            Self::LookAhead => "lookahead_token_ids",
            Self::From => "from_medium",
            Self::ObjectKey => "object_key",
        }
    }

    /// The field that `key` names in an event of kind `tag`.
    pub(super) fn of_key(
        key: &[u8],
        tag: Tag,
        dialect: Dialect,
        engine: EngineKind,
    ) -> Option<Self> {
        match dialect {
            Dialect::Engine => match tag {
                Tag::Cleared | Tag::TierCleared => Self::of_clear_key(key),
                Tag::Moved => Self::of_move_key(key),
                Tag::Stored | Tag::Removed | Tag::Unknown => Self::of_engine_key(key, tag, engine),
            },
            Dialect::Rfc1527 => Self::of_rfc_key(key, tag),
        }
    }

    /// The field of a clear with this key; `None` for keys that are skipped.
    fn of_clear_key(key: &[u8]) -> Option<Self> {
        match key {
            b"medium" => Some(Self::Medium),
            b"locality" => Some(Self::Locality),
            b"group_idx" => Some(Self::Group),
            _ => None,
        }
    }

    /// The field of a move with this key; `None` for keys that are skipped.
    fn of_move_key(key: &[u8]) -> Option<Self> {
        match key {
            b"block_hashes" => Some(Self::Names),
            b"from" | b"from_medium" => Some(Self::From),
            b"to" | b"to_medium" => Some(Self::Medium),
            b"group_idx" => Some(Self::Group),
            b"kv_cache_spec_kind" => Some(Self::Kind),
            _ => None,
        }
    }

    /// The field with this key in RFC 1527's naming; `None` for keys that are skipped.
    fn of_rfc_key(key: &[u8], tag: Tag) -> Option<Self> {
        let field = match key {
            b"seq_hashes" => Self::Names,
            b"medium" => Self::Medium,
            b"object_key" => Self::ObjectKey,
            _ if tag == Tag::Removed => return None,
            b"parent_hash" => Self::Parent,
            b"token_ids" => Self::Tokens,
            b"block_size" => Self::BlockSize,
            b"lora_name" => Self::LoraName,
            b"additional_salt" => Self::CacheSalt,
            _ => return None,
        };
        Some(field)
    }

    /// The field with this key in an engine's naming; `None` for keys that are skipped.
    fn of_engine_key(key: &[u8], tag: Tag, engine: EngineKind) -> Option<Self> {
        let field = match key {
            b"block_hashes" => Self::Names,
            b"medium" => Self::Medium,
            b"locality" => Self::Locality,
            b"group_idx" => Self::Group,
            b"kv_cache_spec_kind" => Self::Kind,
            b"object_key" => Self::ObjectKey,
            b"remaining_copy_counts" if tag == Tag::Removed => Self::RemainingCopies,
            _ if tag == Tag::Removed => return None,
            b"parent_block_hash" => Self::Parent,
            b"token_ids" => Self::Tokens,
            b"kv_cache_spec_sliding_window" => Self::Window,
            // Only custom engines send this key. From other engines it is skipped like any unknown key.
            b"local_hashes" if engine == EngineKind::Custom => Self::LocalHashes,
            b"block_size" => Self::BlockSize,
            b"num_block_tokens" => Self::NumBlockTokens,
            b"lora_id" => Self::LoraId,
            b"lora_name" => Self::LoraName,
            b"cache_salt" => Self::CacheSalt,
            b"extra_keys" => Self::ExtraKeys,
            b"block_mm_infos" => Self::Multimodal,
            b"lookahead_token_ids" => Self::LookAhead,
            _ => return None,
        };
        Some(field)
    }
}
