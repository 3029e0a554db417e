//! Which fields events have, by position and by key.

use super::reader::Value;
use kvasir_proto::types::EngineKind;

/// Key of the kind of an event in a map; in an array it comes first.
pub(super) const TAG: &str = "type";
/// Key of the kind of an event of RFC #1527. Where an event has both, the other one counts: it has
/// the engines' own names for its fields as well, as aliases.
const RFC_TAG: &str = "event_type";

/// The names by which a map's keys are known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Dialect {
    /// The engines' own.
    Engine,
    /// Mooncake's RFC #1527 ("KV events API standardization"), as `mooncake_master` publishes it
    /// without legacy aliases.
    ///
    /// Skipped keys, and why no block is matched by them:
    /// - `backend_id`, `tenant_id`, `model_name`, `dp_rank` of an event: whose blocks these are is
    ///   agreed when the source is registered, and the rank is the batch's. A publisher of several
    ///   tenants or backends cannot be one source.
    /// - `base_block_idx`: a position without its tokens places no block.
    /// - `object_key`: an object of the store, not a block of a prompt.
    ///
    /// Where `token_ids` is nil, as from a store that retains none, no query matches by content: the
    /// names are held by name only, and count as a tier more of blocks that an engine announced
    /// under the same hashes to the same source.
    Rfc1527,
}

impl Dialect {
    /// The dialect of which a key is the tag, if it is any.
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
    Cleared,
    Unknown,
}

impl Tag {
    /// The kind that a value names; none if it is no name at all.
    pub(super) fn of(value: Value<'_>, dialect: Dialect) -> Option<Self> {
        let Value::Text(name) = value else {
            return None;
        };
        Some(match (dialect, name) {
            (Dialect::Engine, b"BlockStored") | (Dialect::Rfc1527, b"stored") => Self::Stored,
            (Dialect::Engine, b"BlockRemoved") | (Dialect::Rfc1527, b"removed") => Self::Removed,
            (Dialect::Engine, b"AllBlocksCleared") | (Dialect::Rfc1527, b"cleared") => {
                Self::Cleared
            }
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
    RemainingCopies,
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
            Self::RemainingCopies => "remaining_copy_counts",
        }
    }

    /// The field that a key means in an event of kind `tag`.
    pub(super) fn of_key(
        key: &[u8],
        tag: Tag,
        dialect: Dialect,
        engine: EngineKind,
    ) -> Option<Self> {
        match dialect {
            Dialect::Engine => Self::of_engine_key(key, tag, engine),
            Dialect::Rfc1527 => Self::of_rfc_key(key, tag),
        }
    }

    fn of_rfc_key(key: &[u8], tag: Tag) -> Option<Self> {
        let field = match key {
            b"seq_hashes" => Self::Names,
            b"medium" => Self::Medium,
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

    fn of_engine_key(key: &[u8], tag: Tag, engine: EngineKind) -> Option<Self> {
        let field = match key {
            b"block_hashes" => Self::Names,
            b"medium" => Self::Medium,
            b"locality" => Self::Locality,
            b"group_idx" => Self::Group,
            b"kv_cache_spec_kind" => Self::Kind,
            b"remaining_copy_counts" if tag == Tag::Removed => Self::RemainingCopies,
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
