//! Encodes events and batches like vLLM: the map form of 0.33 and the array form of 0.23.

use rmp::encode::{
    write_array_len, write_bin, write_f64, write_map_len, write_nil, write_str, write_uint,
};
use serde::{Deserialize, Serialize};

/// An event for the blocks of one group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EngineEvent {
    /// Blocks were computed and cached.
    Stored {
        /// Group of the blocks.
        group: u8,
        /// Names of the blocks, in order.
        names: Vec<u64>,
        /// Name of the preceding block; `None` at the start of a prompt.
        parent: Option<u64>,
        /// Tokens of the span; more than the names cover if some of its blocks were left out.
        tokens: Vec<u32>,
        /// Cache salt of the prompt, an extra key of its first block.
        salt: Option<String>,
    },
    /// One copy of a block was evicted.
    Removed {
        /// Group of the block.
        group: u8,
        /// Name of the block.
        name: u64,
        /// Number of copies that remain.
        remaining: u32,
    },
    /// The cache was reset.
    Cleared,
}

/// Wire format of events.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum WireForm {
    /// Like vLLM 0.33: maps with a `type` key; replies to a replay have four frames.
    #[default]
    Map,
    /// Like vLLM 0.23: arrays with the type in slot 0; replies to a replay have three frames.
    Array,
}

/// Wire format of names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum HashForm {
    /// Unsigned integers, vLLM's default.
    #[default]
    Integer,
    /// Byte strings of 32 bytes that end in the name, big-endian.
    Bytes,
}

/// Format and fixed fields of a batch.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct BatchStyle {
    /// Wire format of events.
    pub form: WireForm,
    /// Wire format of names.
    pub hashes: HashForm,
    /// Tokens per block.
    pub block_size: usize,
    /// Window of the second group in tokens, if there is one.
    pub sliding_window: Option<usize>,
    /// Whether the sliding-window group has number 0 and the full-attention group number 1.
    pub window_first: bool,
    /// Data-parallel rank.
    pub dp_rank: u32,
    /// Whether removals state how many copies remain, as proposed for vLLM; only in maps.
    pub copy_counts: bool,
}

/// Bytes of a name in [`HashForm::Bytes`].
const NAME_BYTES: usize = 32;

impl BatchStyle {
    /// Encodes a batch; `timestamp` is in seconds.
    #[must_use]
    pub fn encode(&self, timestamp: f64, events: &[EngineEvent]) -> Vec<u8> {
        let mut out = Writer { style: *self, bytes: Vec::new() };
        out.array(3);
        out.float(timestamp);
        out.array(events.len());
        for event in events {
            match self.form {
                WireForm::Map => out.event_map(event),
                WireForm::Array => out.event_array(event),
            }
        }
        out.int(u64::from(self.dp_rank));
        out.bytes
    }
}

/// Appends `MessagePack` values to a buffer; writing to memory cannot fail.
struct Writer {
    style: BatchStyle,
    bytes: Vec<u8>,
}

const MEMORY: &str = "writing to memory cannot fail";

impl Writer {
    fn event_map(&mut self, event: &EngineEvent) {
        match event {
            EngineEvent::Stored { group, names, parent, tokens, salt } => {
                let window = self.window(*group);
                self.map(11 + usize::from(window.is_some()));
                self.entry("type", |out| out.text("BlockStored"));
                self.entry("block_hashes", |out| out.names(names));
                self.entry("parent_block_hash", |out| out.optional_name(*parent));
                self.entry("token_ids", |out| out.tokens(tokens));
                self.entry("block_size", |out| out.int(out.style.block_size as u64));
                self.entry("lora_id", Self::nil);
                self.entry("medium", |out| out.text("GPU"));
                self.entry("lora_name", Self::nil);
                let salt = salt.as_deref().filter(|_| parent.is_none());
                self.entry("extra_keys", |out| out.extra_keys(names.len(), salt));
                self.entry("group_idx", |out| out.group(*group));
                self.entry("kv_cache_spec_kind", |out| out.text(spec_kind(*group)));
                if let Some(window) = window {
                    self.entry("kv_cache_spec_sliding_window", |out| out.int(window));
                }
            }
            EngineEvent::Removed { group, name, remaining } => {
                let copy_counts = self.style.copy_counts;
                self.map(4 + usize::from(copy_counts));
                self.entry("type", |out| out.text("BlockRemoved"));
                self.entry("block_hashes", |out| out.names(&[*name]));
                self.entry("medium", |out| out.text("GPU"));
                self.entry("group_idx", |out| out.group(*group));
                if copy_counts {
                    self.entry("remaining_copy_counts", |out| {
                        out.array(1);
                        out.int(u64::from(*remaining));
                    });
                }
            }
            EngineEvent::Cleared => {
                self.map(1);
                self.entry("type", |out| out.text("AllBlocksCleared"));
            }
        }
    }

    fn event_array(&mut self, event: &EngineEvent) {
        match event {
            EngineEvent::Stored { group, names, parent, tokens, salt } => {
                self.array(12);
                self.text("BlockStored");
                self.names(names);
                self.optional_name(*parent);
                self.tokens(tokens);
                self.int(self.style.block_size as u64);
                self.nil();
                self.text("GPU");
                self.nil();
                self.extra_keys(names.len(), salt.as_deref().filter(|_| parent.is_none()));
                self.group(*group);
                self.text(spec_kind(*group));
                match self.window(*group) {
                    Some(window) => self.int(window),
                    None => self.nil(),
                }
            }
            EngineEvent::Removed { group, name, .. } => {
                self.array(4);
                self.text("BlockRemoved");
                self.names(&[*name]);
                self.text("GPU");
                self.group(*group);
            }
            EngineEvent::Cleared => {
                self.array(1);
                self.text("AllBlocksCleared");
            }
        }
    }

    /// Writes the number of a group.
    fn group(&mut self, group: u8) {
        let number = if self.style.window_first { 1 - group } else { group };
        self.int(u64::from(number));
    }

    fn window(&self, group: u8) -> Option<u64> {
        self.style.sliding_window.filter(|_| group > 0).map(|window| window as u64)
    }

    fn entry(&mut self, key: &str, value: impl FnOnce(&mut Self)) {
        self.text(key);
        value(self);
    }

    fn names(&mut self, names: &[u64]) {
        self.array(names.len());
        for &name in names {
            self.name(name);
        }
    }

    fn optional_name(&mut self, name: Option<u64>) {
        match name {
            Some(name) => self.name(name),
            None => self.nil(),
        }
    }

    fn name(&mut self, name: u64) {
        match self.style.hashes {
            HashForm::Integer => self.int(name),
            HashForm::Bytes => {
                let mut bytes = [0; NAME_BYTES];
                for (index, word) in bytes.chunks_exact_mut(8).enumerate() {
                    word.copy_from_slice(&name.rotate_left(16 * (index as u32 + 1)).to_be_bytes());
                }
                write_bin(&mut self.bytes, &bytes).expect(MEMORY);
            }
        }
    }

    fn tokens(&mut self, tokens: &[u32]) {
        self.array(tokens.len());
        for &token in tokens {
            self.int(u64::from(token));
        }
    }

    /// Extra keys of each block: a salt for the first block.
    fn extra_keys(&mut self, len: usize, salt: Option<&str>) {
        self.array(len);
        for index in 0..len {
            match salt.filter(|_| index == 0) {
                Some(salt) => {
                    self.array(1);
                    self.text(salt);
                }
                None => self.nil(),
            }
        }
    }

    fn array(&mut self, len: usize) {
        write_array_len(&mut self.bytes, len as u32).expect(MEMORY);
    }

    fn map(&mut self, len: usize) {
        write_map_len(&mut self.bytes, len as u32).expect(MEMORY);
    }

    fn int(&mut self, value: u64) {
        write_uint(&mut self.bytes, value).expect(MEMORY);
    }

    fn float(&mut self, value: f64) {
        write_f64(&mut self.bytes, value).expect(MEMORY);
    }

    fn text(&mut self, text: &str) {
        write_str(&mut self.bytes, text).expect(MEMORY);
    }

    fn nil(&mut self) {
        write_nil(&mut self.bytes).expect(MEMORY);
    }
}

fn spec_kind(group: u8) -> &'static str {
    if group == 0 { "full_attention" } else { "sliding_window" }
}

#[cfg(test)]
#[path = "wire_test.rs"]
mod wire_test;
