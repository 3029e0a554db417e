//! Parses the hash inputs of an event's blocks besides their tokens: adapter, salt and multimodal content.
//!
//! Explicit keys take precedence. vLLM's `extra_keys` are untagged: per block, a list of the inputs of its
//! hash. The one item equal to the LoRA name (or number) is the adapter. (identifier, offset) pairs are
//! multimodal. The one string left on the first block of a prompt is the salt. A pair with an offset of at
//! least the block size is content that begins with the next block: the hash of a look-ahead block covers its
//! first token.
//!
//! vLLM 0.17.0 to 0.18.1 state bare identifiers instead of pairs. Their events are arrays of a length that
//! 0.19 also uses. In such events, a string is an identifier if it is on another block than a prompt's first,
//! or if a later block repeats it. A lone string of the first block that may be either a salt or an
//! identifier makes the block unmatchable. A source that has stated a pair does not state bare identifiers.

use super::namespace::BlockNamespace;
use crate::decode::{ExtraKey, PerBlock, RawStored};
use kvasir_proto::hash::multimodal_hash;
use kvasir_proto::types::{BlockName, ImageKeys, Learned};
use std::collections::HashMap;

/// Number of fields after the tag in the events of vLLM 0.17.0 to 0.19.1.
const BARE_IDENTIFIER_SLOTS: usize = 8;

/// LoRA adapter of an event's blocks.
pub(super) struct Adapter<'a> {
    /// "" without an adapter, and for an adapter of unknown name.
    pub(super) name: &'a str,
    id: Option<u64>,
    /// Namespace of the adapter's unsalted blocks.
    pub(super) namespace: BlockNamespace,
}

impl<'a> Adapter<'a> {
    /// Reads the adapter by name, or by number if `names` has the number. Number 0 stands for the base model, unless
    /// it has a name.
    pub(super) fn from_stored(stored: &RawStored<'a>, names: &'a HashMap<u64, String>) -> Self {
        let id = stored.lora_id.filter(|id| *id != 0 || names.contains_key(id));
        let stated = stored.lora_name.filter(|name| !name.is_empty());
        let named = stated.or_else(|| names.get(&id?).map(String::as_str));
        let namespace = match (named, id) {
            (None, Some(id)) => BlockNamespace::of_unnamed_adapter(id),
            _ => BlockNamespace::of_adapter(named.unwrap_or_default()),
        };
        Self { name: named.unwrap_or_default(), id, namespace }
    }

    /// The adapter that had `number` before another adapter took its name.
    pub(super) fn replaced(self, number: u64) -> Self {
        Self { namespace: BlockNamespace::of_unnamed_adapter(number), ..self }
    }
}

/// Reads the keys of an event's blocks, one block at a time.
#[expect(clippy::struct_excessive_bools, reason = "facts of an event, each read by itself")]
pub(super) struct KeyReader<'e, 'a> {
    adapter: &'e Adapter<'a>,
    /// Tokens per block.
    block_size: i64,
    /// Salt stated explicitly, for all blocks.
    salt: Option<&'a str>,
    extra: BlockKeys<'e, 'a>,
    multimodal: BlockKeys<'e, 'a>,
    /// Whether both lists have one entry per block.
    aligned: bool,
    /// Whether the next block is the first of a prompt.
    first: bool,
    /// Whether the event may state bare identifiers.
    may_be_bare: bool,
    image_keys: ImageKeys,
    has_extra_keys: bool,
    /// Sorted hashes of the multimodal content that begins directly after the block.
    next_multimodal: Vec<u64>,
}

impl<'e, 'a> KeyReader<'e, 'a> {
    /// Starts to read an event. `image_keys` states how the source has identified images.
    pub(super) fn new(
        stored: &'e RawStored<'a>,
        adapter: &'e Adapter<'a>,
        block_size: u64,
        image_keys: ImageKeys,
    ) -> Self {
        let lists = [&stored.extra_keys, &stored.multimodal];
        let aligned =
            lists.iter().copied().flatten().all(|list: &PerBlock<'_>| {
                list.keys.is_empty() || list.blocks == stored.names.len()
            });
        let salt = stored.cache_salt.filter(|salt| !salt.is_empty());
        Self {
            adapter,
            block_size: i64::try_from(block_size).unwrap_or(i64::MAX),
            salt,
            extra: BlockKeys::new(stored.extra_keys.as_ref()),
            multimodal: BlockKeys::new(stored.multimodal.as_ref()),
            aligned,
            first: stored.parent.is_none(),
            may_be_bare: stored.slots == Some(BARE_IDENTIFIER_SLOTS),
            image_keys,
            has_extra_keys: salt.is_some(),
            next_multimodal: Vec::new(),
        }
    }

    /// Saves the facts that the event has shown about its source.
    pub(super) fn finish(self, learned: &mut Learned) {
        learned.image_keys = self.image_keys;
        learned.has_extra_keys |= self.has_extra_keys;
    }

    /// Sorted hashes of the multimodal content that begins directly after the last block read.
    pub(super) fn next_multimodal(&self) -> &[u64] {
        &self.next_multimodal
    }

    /// Reads the next block's keys, and replaces `hashes` by the sorted hashes of its multimodal content.
    /// Returns the block's namespace if the keys state more than the adapter.
    pub(super) fn next_block(
        &mut self,
        name: BlockName,
        hashes: &mut Vec<u64>,
    ) -> Option<BlockNamespace> {
        hashes.clear();
        self.next_multimodal.clear();
        let first = std::mem::replace(&mut self.first, false);
        let stated = self.multimodal.next_block();
        let untagged = self.extra.next_block();
        let mut understood = self.aligned;
        for (_, key) in stated {
            match key {
                ExtraKey::ItemHash(hash) => hashes.push(*hash),
                ExtraKey::Item(identifier, _) => hashes.push(multimodal_hash(identifier)),
                ExtraKey::Text(_) | ExtraKey::Number(_) | ExtraKey::Unknown => understood = false,
            }
        }
        let mut adapter_key = ExpectedKey::new(self.adapter.name);
        let mut salt_key = ExpectedKey::new(self.salt.unwrap_or_default());
        let mut salt = self.salt;
        let is_adapter = |key: &ExtraKey<'a>| *key == ExtraKey::Text(self.adapter.name);
        let has_others = untagged.iter().filter(|(_, key)| !is_adapter(key)).count() > 1;
        for (_, key) in untagged {
            match *key {
                ExtraKey::Text(text) if adapter_key.is(text) || salt_key.is(text) => {}
                ExtraKey::Text(text) if self.is_bare_identifier(text, first) => {
                    self.image_keys = ImageKeys::Bare;
                    hashes.push(multimodal_hash(text));
                }
                // The event does not distinguish a short image identifier from a salt.
                ExtraKey::Text(text) if first && self.is_ambiguous(text, has_others) => {
                    understood = false;
                }
                ExtraKey::Text(text) if first && salt.is_none() && !text.is_empty() => {
                    salt = Some(text);
                }
                ExtraKey::Number(number) if self.adapter.id == Some(number) => {}
                // Explicitly stated content is not counted twice.
                ExtraKey::Item(..) | ExtraKey::ItemHash(_) if !stated.is_empty() => {}
                ExtraKey::Item(identifier, offset) => {
                    self.image_keys = ImageKeys::Pairs;
                    let hash = multimodal_hash(identifier);
                    let is_next = offset >= self.block_size;
                    if is_next { &mut self.next_multimodal } else { &mut *hashes }.push(hash);
                }
                ExtraKey::ItemHash(hash) => hashes.push(hash),
                ExtraKey::Text(_) | ExtraKey::Number(_) | ExtraKey::Unknown => understood = false,
            }
        }
        hashes.sort_unstable();
        self.next_multimodal.sort_unstable();
        let adapter = self.adapter.namespace;
        self.has_extra_keys |=
            !understood || !hashes.is_empty() || !self.next_multimodal.is_empty();
        if !understood {
            return Some(adapter.with_unknown(name));
        }
        self.has_extra_keys |= salt.is_some();
        salt.map(|salt| adapter.with_salt(self.adapter.name, salt))
    }

    /// Whether a string among a block's keys is an image identifier.
    fn is_bare_identifier(&self, text: &str, first: bool) -> bool {
        if !self.may_be_bare || self.image_keys == ImageKeys::Pairs || text.is_empty() {
            return false;
        }
        !first || self.extra.is_repeated_later(text, self.adapter.name)
    }

    /// Whether a string of a prompt's first block may be a salt or a short image's identifier: it looks like
    /// an identifier, or is a lone string of a source with bare identifiers.
    fn is_ambiguous(&self, text: &str, has_others: bool) -> bool {
        let has_digits = text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        let may_be_digits = self.may_be_bare && has_digits && self.image_keys != ImageKeys::Pairs;
        may_be_digits || (!has_others && self.image_keys == ImageKeys::Bare)
    }
}

/// A string that may occur once among untagged keys; "" if none is expected.
struct ExpectedKey<'a>(&'a str);

impl<'a> ExpectedKey<'a> {
    const fn new(key: &'a str) -> Self {
        Self(key)
    }

    /// Whether `text` is the expected key, at its first occurrence: a salt may equal the adapter's name.
    fn is(&mut self, text: &str) -> bool {
        let found = !self.0.is_empty() && self.0 == text;
        if found {
            self.0 = "";
        }
        found
    }
}

/// Walks a flattened list block by block.
struct BlockKeys<'e, 'a> {
    rest: &'e [(u32, ExtraKey<'a>)],
    block: u32,
}

impl<'e, 'a> BlockKeys<'e, 'a> {
    fn new(list: Option<&'e PerBlock<'a>>) -> Self {
        Self { rest: list.map_or(&[], |list| list.keys.as_slice()), block: 0 }
    }

    /// Whether a later block also has this string. The adapter's name, which every block has, does not count.
    fn is_repeated_later(&self, text: &str, adapter: &str) -> bool {
        let same = |keys: &&[(u32, ExtraKey<'a>)]| {
            let count = keys.iter().filter(|(_, key)| *key == ExtraKey::Text(text)).count();
            count > usize::from(text == adapter)
        };
        self.rest.chunk_by(|(block, _), (next, _)| block == next).any(|keys| same(&keys))
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
