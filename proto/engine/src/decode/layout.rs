//! Which fields events have, by position and by key.

use super::EngineKind;
use super::reader::Value;

/// Key of the kind of an event in a map; in an array it comes first.
pub(super) const TAG: &str = "type";

/// Kind of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Tag {
    Stored,
    Removed,
    Cleared,
    Unknown,
}

impl Tag {
    /// The kind that a value names; none if it is no name at all.
    pub(super) fn of(value: Value<'_>) -> Option<Self> {
        let Value::Text(name) = value else {
            return None;
        };
        Some(match name {
            b"BlockStored" => Self::Stored,
            b"BlockRemoved" => Self::Removed,
            b"AllBlocksCleared" => Self::Cleared,
            _ => Self::Unknown,
        })
    }
}

/// A field that is read. All others are passed over.
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
    ExtraKeys,
    Multimodal,
}

/// Fields of `BlockStored` after its tag; none where a slot is passed over. Engines send the first
/// so many.
pub(super) const STORED_SLOTS: [Option<Field>; 12] = [
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
    None,
    Some(Field::Locality),
];

/// Fields of `BlockRemoved` after its tag.
pub(super) const REMOVED_SLOTS: [Option<Field>; 6] = [
    Some(Field::Names),
    Some(Field::Medium),
    Some(Field::Group),
    Some(Field::Kind),
    None,
    Some(Field::Locality),
];

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
            Self::ExtraKeys => "extra_keys",
            Self::Multimodal => "block_mm_infos",
        }
    }

    /// The field that a key of an event of kind `tag` stands for.
    pub(super) fn of_key(key: &[u8], tag: Tag, engine: EngineKind) -> Option<Self> {
        let field = match key {
            b"block_hashes" => Self::Names,
            b"medium" => Self::Medium,
            b"locality" => Self::Locality,
            b"group_idx" => Self::Group,
            b"kv_cache_spec_kind" => Self::Kind,
            _ if tag == Tag::Removed => return None,
            b"parent_block_hash" => Self::Parent,
            b"token_ids" => Self::Tokens,
            // No known engine has it: of theirs it is passed over, as all that is not known.
            b"local_hashes" if engine == EngineKind::Custom => Self::LocalHashes,
            b"block_size" => Self::BlockSize,
            b"num_block_tokens" => Self::NumBlockTokens,
            b"lora_id" => Self::LoraId,
            b"lora_name" => Self::LoraName,
            b"cache_salt" => Self::CacheSalt,
            b"extra_keys" => Self::ExtraKeys,
            b"block_mm_infos" => Self::Multimodal,
            _ => return None,
        };
        Some(field)
    }
}
