//! What an event states about its blocks besides their tokens: adapter, salt, multimodal content.
//!
//! Explicit keys come first. vLLM's `extra_keys` are untagged: per block a list of what went into
//! its hash. The one item equal to the LoRA name (or number) is that; (identifier, offset) pairs
//! are multimodal; the one string left on the first block of a prompt is the salt.

use super::namespace::BlockNamespace;
use crate::decode::{ExtraKey, PerBlock, RawStored};
use kvasir_proto::hash::multimodal_hash;
use kvasir_proto::types::BlockName;
use std::collections::HashMap;

/// LoRA adapter of an event.
pub(super) struct Adapter<'a> {
    /// "" for none, and for one whose name is not known.
    name: &'a str,
    id: Option<u64>,
    /// Namespace of its unsalted blocks.
    pub(super) namespace: BlockNamespace,
}

impl<'a> Adapter<'a> {
    /// Reads the adapter by name, or by number where `names` has one. Number 0 is no adapter, unless it
    /// has a name.
    pub(super) fn of(stored: &RawStored<'a>, names: &'a HashMap<u64, String>) -> Self {
        let id = stored.lora_id.filter(|id| *id != 0 || names.contains_key(id));
        let stated = stored.lora_name.filter(|name| !name.is_empty());
        let named = stated.or_else(|| names.get(&id?).map(String::as_str));
        let namespace = match (named, id) {
            (None, Some(id)) => BlockNamespace::of_unnamed_adapter(id),
            _ => BlockNamespace::of_adapter(named.unwrap_or_default()),
        };
        Self { name: named.unwrap_or_default(), id, namespace }
    }
}

/// Reads the keys of an event's blocks, one block after the other.
pub(super) struct KeyReader<'e, 'a> {
    adapter: &'e Adapter<'a>,
    /// Salt stated explicitly, for all blocks.
    salt: Option<&'a str>,
    extra: BlockKeys<'e, 'a>,
    multimodal: BlockKeys<'e, 'a>,
    /// Whether both lists have an entry per block.
    aligned: bool,
    /// Whether the next block is the first of a prompt.
    first: bool,
}

impl<'e, 'a> KeyReader<'e, 'a> {
    pub(super) fn new(stored: &'e RawStored<'a>, adapter: &'e Adapter<'a>) -> Self {
        let lists = [&stored.extra_keys, &stored.multimodal];
        let aligned =
            lists.iter().copied().flatten().all(|list: &PerBlock<'_>| {
                list.keys.is_empty() || list.blocks == stored.names.len()
            });
        Self {
            adapter,
            salt: stored.cache_salt.filter(|salt| !salt.is_empty()),
            extra: BlockKeys::new(stored.extra_keys.as_ref()),
            multimodal: BlockKeys::new(stored.multimodal.as_ref()),
            aligned,
            first: stored.parent.is_none(),
        }
    }

    /// Reads the next block's keys: its multimodal hashes, ascending, replace what is in `hashes`.
    /// Returns its namespace, if they state more than the adapter.
    pub(super) fn next_block(
        &mut self,
        name: BlockName,
        hashes: &mut Vec<u64>,
    ) -> Option<BlockNamespace> {
        hashes.clear();
        let first = std::mem::replace(&mut self.first, false);
        let stated = self.multimodal.next_block();
        let untagged = self.extra.next_block();
        let mut understood = self.aligned;
        for (_, key) in stated {
            match key {
                ExtraKey::ItemHash(hash) => hashes.push(*hash),
                ExtraKey::Item(identifier) => hashes.push(multimodal_hash(identifier)),
                ExtraKey::Text(_) | ExtraKey::Number(_) | ExtraKey::Unknown => understood = false,
            }
        }
        let mut adapter_key = ExpectedKey::new(self.adapter.name);
        let mut salt_key = ExpectedKey::new(self.salt.unwrap_or_default());
        let mut salt = self.salt;
        for (_, key) in untagged {
            match *key {
                ExtraKey::Text(text) if adapter_key.is(text) || salt_key.is(text) => {}
                ExtraKey::Text(text) if first && salt.is_none() && !text.is_empty() => {
                    salt = Some(text);
                }
                ExtraKey::Number(number) if self.adapter.id == Some(number) => {}
                // Content that is stated explicitly is not counted twice.
                ExtraKey::Item(_) | ExtraKey::ItemHash(_) if !stated.is_empty() => {}
                ExtraKey::Item(identifier) => hashes.push(multimodal_hash(identifier)),
                ExtraKey::ItemHash(hash) => hashes.push(hash),
                ExtraKey::Text(_) | ExtraKey::Number(_) | ExtraKey::Unknown => understood = false,
            }
        }
        hashes.sort_unstable();
        let adapter = self.adapter.namespace;
        if !understood {
            return Some(adapter.with_unknown(name));
        }
        salt.map(|salt| adapter.with_salt(self.adapter.name, salt))
    }
}

/// A string that may occur once among untagged keys; "" for none.
struct ExpectedKey<'a>(&'a str);

impl<'a> ExpectedKey<'a> {
    const fn new(key: &'a str) -> Self {
        Self(key)
    }

    /// Whether this is it, for the first time: a salt may equal the adapter's name.
    fn is(&mut self, text: &str) -> bool {
        let found = !self.0.is_empty() && self.0 == text;
        if found {
            self.0 = "";
        }
        found
    }
}

/// Walks a flattened list.
struct BlockKeys<'e, 'a> {
    rest: &'e [(u32, ExtraKey<'a>)],
    block: u32,
}

impl<'e, 'a> BlockKeys<'e, 'a> {
    fn new(list: Option<&'e PerBlock<'a>>) -> Self {
        Self { rest: list.map_or(&[], |list| list.keys.as_slice()), block: 0 }
    }

    fn next_block(&mut self) -> &'e [(u32, ExtraKey<'a>)] {
        debug_assert!(
            self.rest.first().is_none_or(|(block, _)| *block >= self.block),
            "keys ascend by block"
        );
        let length = self.rest.iter().take_while(|(block, _)| *block == self.block).count();
        let (keys, rest) = self.rest.split_at_checked(length).unwrap_or_default();
        self.rest = rest;
        self.block += 1;
        keys
    }
}
