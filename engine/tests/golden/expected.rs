//! Converts the recorded meaning of a frame to raw events, without the decoder.

use crate::frames::hex;
use kvasir_engine::decode::{
    EngineKind, ExtraKey, LookAhead, PerBlock, Place, RawEvent, RawRemoved, RawStored, RawTokens,
};
use kvasir_proto::types::{BlockName, Group, KvEvent};
use serde_json::Value;

static NULL: Value = Value::Null;

/// Fields of `BlockStored` in its array form.
const STORED: [&str; 13] = [
    "type",
    "block_hashes",
    "parent_block_hash",
    "token_ids",
    "block_size",
    "lora_id",
    "medium",
    "lora_name",
    "extra_keys",
    "group_idx",
    "kv_cache_spec_kind",
    "kv_cache_spec_sliding_window",
    "locality",
];
/// Fields of `BlockRemoved` in its array form.
const REMOVED: [&str; 4] = ["type", "block_hashes", "medium", "group_idx"];

/// A field of an event in either form; null if absent.
pub(crate) fn field<'a>(event: &'a Value, key: &str) -> &'a Value {
    match event {
        Value::Array(slots) => {
            let names: &[&str] = if slots[0] == "BlockRemoved" { &REMOVED } else { &STORED };
            let metadata = &slots.get(7).unwrap_or(&NULL)["cache_salt"];
            match names.iter().position(|name| *name == key) {
                Some(7) if !metadata.is_null() => &NULL,
                Some(slot) => slots.get(slot).unwrap_or(&NULL),
                None if key == "cache_salt" => metadata,
                None => &NULL,
            }
        }
        event => &event[key],
    }
}

pub(crate) fn name(hash: &Value, engine: EngineKind) -> BlockName {
    if let Some(unsigned) = hash.as_u64() {
        return BlockName(unsigned);
    }
    if let Some(signed) = hash.as_i64() {
        return BlockName(u64::from_le_bytes(signed.to_le_bytes()));
    }
    let bytes = hex(hash["$bin"].as_str().expect("a hash"));
    let eight = match engine {
        EngineKind::Sglang => &bytes[..8],
        _ => &bytes[bytes.len() - 8..],
    };
    BlockName(u64::from_be_bytes(eight.try_into().expect("8 bytes")))
}

pub(crate) fn names(event: &Value, engine: EngineKind) -> Vec<BlockName> {
    let hashes = field(event, "block_hashes").as_array().expect("hashes");
    hashes.iter().map(|hash| name(hash, engine)).collect()
}

fn place(event: &Value) -> Place<'_> {
    Place {
        medium: field(event, "medium").as_str(),
        locality: field(event, "locality").as_str(),
        group: field(event, "group_idx").as_u64().map(|group| u32::try_from(group).expect("u32")),
        kind: field(event, "kv_cache_spec_kind").as_str(),
    }
}

pub(crate) fn tokens(event: &Value) -> RawTokens {
    let ids = field(event, "token_ids").as_array().expect("tokens");
    if ids.iter().any(Value::is_array) {
        return RawTokens::Pairs;
    }
    let ids = ids.iter().map(|id| u32::try_from(id.as_u64().expect("id")).expect("u32"));
    RawTokens::Ids(ids.flat_map(u32::to_le_bytes).collect())
}

fn per_block<'a>(
    list: &'a Value,
    entry: fn(&'a Value) -> Vec<ExtraKey<'a>>,
) -> Option<PerBlock<'a>> {
    let blocks = list.as_array()?;
    let keys = blocks.iter().zip(0..).flat_map(|(block, index)| {
        let keys = if block.is_null() { Vec::new() } else { entry(block) };
        keys.into_iter().map(move |key| (index, key))
    });
    Some(PerBlock { blocks: blocks.len(), keys: keys.collect() })
}

fn extra_keys(entry: &Value) -> Vec<ExtraKey<'_>> {
    entry.as_array().expect("keys").iter().map(extra_key).collect()
}

fn extra_key(item: &Value) -> ExtraKey<'_> {
    match item {
        Value::String(text) => ExtraKey::Text(text),
        Value::Array(pair) => {
            let offset = pair[1].as_i64().expect("an offset");
            ExtraKey::Item(pair[0].as_str().expect("identifier"), offset)
        }
        other => panic!("not in the golden files: {other}"),
    }
}

fn multimodal(entry: &Value) -> Vec<ExtraKey<'_>> {
    let objects = entry["mm_objects"].as_array().expect("objects").iter();
    objects.map(|object| ExtraKey::ItemHash(object["mm_hash"].as_u64().expect("hash"))).collect()
}

/// The expected raw event.
pub(crate) fn event(event: &Value, engine: EngineKind) -> RawEvent<'_> {
    let tag = event.get(0).unwrap_or(&event["type"]);
    match tag.as_str().expect("a tag") {
        "AllBlocksCleared" => RawEvent::Cleared(Place::default()),
        "BlockRemoved" => RawEvent::Removed(RawRemoved {
            names: names(event, engine),
            place: place(event),
            remaining: None,
        }),
        "BlockStored" => RawEvent::Stored(Box::new(RawStored {
            names: names(event, engine),
            parent: match field(event, "parent_block_hash") {
                Value::Null => None,
                parent => Some(name(parent, engine)),
            },
            tokens: tokens(event),
            local_hashes: None,
            block_size: field(event, "block_size").as_u64().expect("block size"),
            num_block_tokens: None,
            place: place(event),
            window: field(event, "kv_cache_spec_sliding_window").as_u64(),
            lora_id: field(event, "lora_id").as_u64(),
            lora_name: field(event, "lora_name").as_str(),
            cache_salt: field(event, "cache_salt").as_str(),
            extra_keys: per_block(field(event, "extra_keys"), extra_keys),
            multimodal: per_block(field(event, "block_mm_infos"), multimodal),
            look_ahead: field(event, "lookahead_token_ids").as_array().map(|blocks| {
                let token = |tokens: &Value| tokens[0].as_u64().and_then(|id| id.try_into().ok());
                let read = |tokens| token(tokens).map_or(LookAhead::Other, LookAhead::Token);
                blocks.iter().map(read).collect()
            }),
            slots: event.as_array().map(|slots| slots.len() - 1),
        })),
        other => panic!("not in the golden files: {other}"),
    }
}

/// Number of an event's operations that the engine sent: declarations of groups are added.
pub(crate) fn operations(event: &KvEvent) -> usize {
    match event {
        KvEvent::Stored { blocks, .. } => {
            blocks.iter().filter(|&&block| Group::of_declaration(block).is_none()).count()
        }
        other => other.operations(),
    }
}
