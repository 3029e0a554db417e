//! Events as vLLM writes them.

use crate::chain::Name;
use crate::setup::{Form, Setup};
use kvasir_proto::types::Tier;
use rmp::encode::{
    write_array_len, write_bin, write_f64, write_map_len, write_nil, write_sint, write_str,
    write_uint,
};

/// One event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    Stored(Stored),
    Removed {
        tier: Tier,
        group: Option<u32>,
        names: Vec<Name>,
        remaining: Option<Vec<u64>>,
    },
    /// Everything.
    Cleared,
    /// One tier, as `TierBlocksCleared` or as `AllBlocksCleared` with a medium.
    ClearedTier {
        tier: Tier,
        has_own_kind: bool,
    },
    Moved {
        from: Tier,
        to: Tier,
        names: Vec<Name>,
    },
    /// `BlockInactive`.
    Inactive(Vec<Name>),
    /// A removal under a kind that no release has.
    Unknown(Vec<Name>),
    /// A removal whose names cannot be read.
    Unreadable,
}

/// `BlockStored`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stored {
    pub tier: Tier,
    pub group: Option<u32>,
    pub kind: Option<&'static str>,
    pub names: Vec<Name>,
    pub parent: Option<Name>,
    pub tokens: Vec<u32>,
    pub lora_id: Option<u64>,
    pub lora_name: Option<&'static str>,
    pub keys: StatedKeys,
    /// The token after each block.
    pub look_ahead: Option<Vec<u32>>,
}

/// `extra_keys`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StatedKeys {
    Absent,
    Nil,
    ByBlock(Vec<Vec<Key>>),
}

/// One of a block's keys.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Key {
    Text(String),
    Number(u64),
    Item(String, i64),
    Bytes(u64),
}

/// The payload of a batch.
pub fn encode(setup: &Setup, rank: u32, events: &[Event]) -> Vec<u8> {
    let mut out = Writer { setup, bytes: Vec::new() };
    out.array(3);
    write_f64(&mut out.bytes, 1.5).expect(MEMORY);
    out.array(events.len());
    for event in events {
        match event {
            Event::Stored(stored) => out.stored(stored),
            Event::Removed { tier, group, names, remaining } => {
                out.removed(*tier, *group, names, remaining.as_deref());
            }
            Event::Cleared => out.event("AllBlocksCleared", &mut []),
            Event::ClearedTier { tier, has_own_kind } => {
                let kind = if *has_own_kind { "TierBlocksCleared" } else { "AllBlocksCleared" };
                out.event(kind, &mut [("medium", &mut |out| out.medium(*tier))]);
            }
            Event::Moved { from, to, names } => out.event(
                "BlockTransferred",
                &mut [
                    ("block_hashes", &mut |out| out.names(names)),
                    ("from", &mut |out| out.medium(*from)),
                    ("to", &mut |out| out.medium(*to)),
                ],
            ),
            Event::Inactive(names) => {
                out.event("BlockInactive", &mut [("block_hashes", &mut |out| out.names(names))]);
            }
            Event::Unknown(names) => {
                out.event("BlockVanished", &mut [("block_hashes", &mut |out| out.names(names))]);
            }
            Event::Unreadable => {
                out.event("BlockRemoved", &mut [("block_hashes", &mut |out| out.text("?"))]);
            }
        }
    }
    out.int(u64::from(rank));
    out.bytes
}

const MEMORY: &str = "writing to memory cannot fail";

/// Writes the value of a field.
type Field<'a> = (&'static str, &'a mut dyn FnMut(&mut Writer<'_>));

struct Writer<'a> {
    setup: &'a Setup,
    bytes: Vec<u8>,
}

impl Writer<'_> {
    /// An event: in an array the fields come in order, without their keys.
    fn event(&mut self, kind: &str, fields: &mut [Field<'_>]) {
        let is_map = self.setup.form == Form::Map;
        if is_map {
            write_map_len(&mut self.bytes, fields.len() as u32 + 1).expect(MEMORY);
            self.text("type");
        } else {
            self.array(fields.len() + 1);
        }
        self.text(kind);
        for (key, value) in fields {
            if is_map {
                self.text(key);
            }
            value(self);
        }
    }

    fn stored(&mut self, stored: &Stored) {
        let size = if stored.tokens.is_empty() { 0 } else { self.setup.block_size };
        let mut names = |out: &mut Writer<'_>| out.names(&stored.names);
        let mut parent = |out: &mut Writer<'_>| out.optional(stored.parent);
        let mut tokens = |out: &mut Writer<'_>| out.numbers(&stored.tokens);
        let mut block_size = |out: &mut Writer<'_>| out.int(size as u64);
        let mut lora_id = |out: &mut Writer<'_>| out.optional(stored.lora_id);
        let mut medium = |out: &mut Writer<'_>| out.medium(stored.tier);
        let mut lora_name = |out: &mut Writer<'_>| out.optional_text(stored.lora_name);
        let mut keys = |out: &mut Writer<'_>| out.keys(&stored.keys);
        let mut group = |out: &mut Writer<'_>| out.optional(stored.group.map(u64::from));
        let mut kind = |out: &mut Writer<'_>| out.optional_text(stored.kind);
        let mut ahead = |out: &mut Writer<'_>| {
            let tokens = stored.look_ahead.as_deref().unwrap_or_default();
            out.array(tokens.len());
            tokens.iter().for_each(|&token| out.numbers(&[token]));
        };
        let fields: [Field<'_>; 7] = [
            ("block_hashes", &mut names),
            ("parent_block_hash", &mut parent),
            ("token_ids", &mut tokens),
            ("block_size", &mut block_size),
            ("lora_id", &mut lora_id),
            ("medium", &mut medium),
            ("lora_name", &mut lora_name),
        ];
        let mut fields = Vec::from(fields);
        let form = self.setup.form;
        if form != Form::Map || stored.keys != StatedKeys::Absent {
            fields.push(("extra_keys", &mut keys));
        }
        let has_group = form == Form::Map && stored.group.is_some();
        if form == Form::LongArray || has_group {
            fields.push(("group_idx", &mut group));
            fields.push(("kv_cache_spec_kind", &mut kind));
        }
        if stored.look_ahead.is_some() {
            fields.push(("lookahead_token_ids", &mut ahead));
        }
        self.event("BlockStored", &mut fields);
    }

    fn removed(
        &mut self,
        tier: Tier,
        group: Option<u32>,
        names: &[Name],
        remaining: Option<&[u64]>,
    ) {
        let mut hashes = |out: &mut Writer<'_>| out.names(names);
        let mut medium = |out: &mut Writer<'_>| out.medium(tier);
        let mut number = |out: &mut Writer<'_>| out.optional(group.map(u64::from));
        let mut counts = |out: &mut Writer<'_>| out.names(remaining.unwrap_or_default());
        let fields: [Field<'_>; 2] = [("block_hashes", &mut hashes), ("medium", &mut medium)];
        let mut fields = Vec::from(fields);
        if group.is_some() {
            fields.push(("group_idx", &mut number));
        }
        if remaining.is_some() {
            fields.push(("remaining_copy_counts", &mut counts));
        }
        self.event("BlockRemoved", &mut fields);
    }

    fn keys(&mut self, keys: &StatedKeys) {
        let StatedKeys::ByBlock(blocks) = keys else {
            write_nil(&mut self.bytes).expect(MEMORY);
            return;
        };
        self.array(blocks.len());
        for keys in blocks {
            if keys.is_empty() {
                write_nil(&mut self.bytes).expect(MEMORY);
                continue;
            }
            self.array(keys.len());
            keys.iter().for_each(|key| self.key(key));
        }
    }

    fn key(&mut self, key: &Key) {
        match key {
            Key::Text(text) => self.text(text),
            Key::Number(number) => self.int(*number),
            Key::Item(identifier, offset) => {
                self.array(2);
                self.text(identifier);
                write_sint(&mut self.bytes, *offset).expect(MEMORY);
            }
            Key::Bytes(seed) => {
                write_bin(&mut self.bytes, &seed.to_be_bytes().repeat(4)).expect(MEMORY);
            }
        }
    }

    fn medium(&mut self, tier: Tier) {
        self.text(match tier {
            Tier::Device => "GPU",
            Tier::Host => "CPU",
            Tier::Disk => "DISK",
        });
    }

    fn names(&mut self, names: &[u64]) {
        self.array(names.len());
        names.iter().for_each(|&name| self.int(name));
    }

    fn numbers(&mut self, numbers: &[u32]) {
        self.array(numbers.len());
        numbers.iter().for_each(|&number| self.int(u64::from(number)));
    }

    fn optional(&mut self, number: Option<u64>) {
        match number {
            Some(number) => self.int(number),
            None => write_nil(&mut self.bytes).expect(MEMORY),
        }
    }

    fn optional_text(&mut self, text: Option<&str>) {
        match text {
            Some(text) => self.text(text),
            None => write_nil(&mut self.bytes).expect(MEMORY),
        }
    }

    fn array(&mut self, len: usize) {
        write_array_len(&mut self.bytes, len as u32).expect(MEMORY);
    }

    fn int(&mut self, value: u64) {
        write_uint(&mut self.bytes, value).expect(MEMORY);
    }

    fn text(&mut self, text: &str) {
        write_str(&mut self.bytes, text).expect(MEMORY);
    }
}
