//! Encodes batches like vLLM 0.33: `[time stamp, [event, …], rank]`, each event a map.

use kvasir_feed::journal::Batch;
use kvasir_proto::types::{BlockName, Incarnation, KvEvent, StoredBlock, Tier};
use rmp::encode::{
    ByteBuf, ValueWriteError, write_array_len, write_f64, write_map_len, write_nil, write_str,
    write_uint,
};
use std::convert::Infallible;
use xxhash_rust::xxh3::xxh3_64;

/// Encoder for the batches of one incarnation.
#[derive(Debug, Clone, Copy)]
pub(super) struct Encoder {
    /// Hash of the incarnation, in place of the time stamp.
    stamp: f64,
    block_size: u32,
}

impl Encoder {
    pub(super) fn new(incarnation: Incarnation, block_size: u32) -> Self {
        // 52 bits, which the number holds exactly. Readers see seconds of a known epoch, before 2107.
        let hash = xxh3_64(&incarnation.0.to_le_bytes()).to_le_bytes();
        let [a, b, c, d, e, f, g, _] = hash;
        let seconds = f64::from(u32::from_le_bytes([a, b, c, d]));
        let fraction = f64::from(u32::from_le_bytes([e, f, g & 0xf, 0])) / f64::from(1 << 20);
        Self { stamp: seconds + fraction, block_size }
    }

    /// Payload of a batch. The same batch always has the same bytes.
    pub(super) fn encode(&self, batch: &Batch) -> Vec<u8> {
        let bytes = ByteBuf::with_capacity(batch.wire_bytes().saturating_mul(2));
        let mut out = Writer { bytes, block_size: self.block_size };
        out.array(3);
        sure(write_f64(&mut out.bytes, self.stamp));
        out.array(batch.events().len());
        for event in batch.events() {
            out.event(event);
        }
        out.int(batch.rank().into());
        out.bytes.into_vec()
    }
}

/// Unwraps a write to memory, which cannot fail.
fn sure<T>(written: Result<T, ValueWriteError<Infallible>>) -> T {
    match written {
        Ok(written) => written,
        Err(
            ValueWriteError::InvalidMarkerWrite(never) | ValueWriteError::InvalidDataWrite(never),
        ) => match never {},
    }
}

struct Writer {
    bytes: ByteBuf,
    block_size: u32,
}

impl Writer {
    /// Encodes an event as a map, in vLLM's format.
    fn event(&mut self, event: &KvEvent) {
        match event {
            KvEvent::Stored { parent, tier, blocks } => self.stored(*parent, *tier, blocks),
            KvEvent::StoredNames { tier, names } => {
                self.map(8);
                self.stored_head(names.len(), names.iter().copied(), None);
                self.stored_tail(*tier);
            }
            KvEvent::Removed { tier, names } => {
                self.map(3);
                self.text_entry("type", "BlockRemoved");
                self.names(names.len(), names.iter().copied());
                self.text_entry("medium", medium(*tier));
            }
            KvEvent::Gone { tier, names } => {
                self.map(4);
                self.text_entry("type", "BlockRemoved");
                self.names(names.len(), names.iter().copied());
                self.text_entry("medium", medium(*tier));
                self.text("remaining_copy_counts");
                self.array(names.len());
                names.iter().for_each(|_| self.int(0));
            }
            KvEvent::Cleared => {
                self.map(1);
                self.text_entry("type", "AllBlocksCleared");
            }
            KvEvent::ClearedTier(tier) => {
                self.map(2);
                self.text_entry("type", "TierBlocksCleared");
                self.text_entry("medium", medium(*tier));
            }
        }
    }

    /// Encodes a store. The blocks have local hashes instead of tokens.
    fn stored(&mut self, parent: Option<BlockName>, tier: Tier, blocks: &[StoredBlock]) {
        self.map(9);
        self.stored_head(blocks.len(), blocks.iter().map(|block| block.name), parent);
        self.stored_tail(tier);
        self.text("local_hashes");
        self.array(blocks.len());
        blocks.iter().for_each(|block| self.int(block.local.0));
    }

    /// Writes the first four entries of a map for stored blocks: type, names, parent and no tokens.
    fn stored_head(
        &mut self,
        count: usize,
        names: impl Iterator<Item = BlockName>,
        parent: Option<BlockName>,
    ) {
        self.text_entry("type", "BlockStored");
        self.names(count, names);
        self.text("parent_block_hash");
        match parent {
            Some(parent) => self.int(parent.0),
            None => self.nil(),
        }
        self.text("token_ids");
        self.array(0);
    }

    /// Writes the last four entries of a map for stored blocks. Keys that readers of vLLM's events may require are
    /// present with nil.
    fn stored_tail(&mut self, tier: Tier) {
        self.text("block_size");
        self.int(self.block_size.into());
        self.text("lora_id");
        self.nil();
        self.text_entry("medium", medium(tier));
        self.text("lora_name");
        self.nil();
    }

    fn names(&mut self, count: usize, names: impl Iterator<Item = BlockName>) {
        self.text("block_hashes");
        self.array(count);
        names.for_each(|name| self.int(name.0));
    }

    fn text_entry(&mut self, key: &str, value: &str) {
        self.text(key);
        self.text(value);
    }

    /// Writes an array's length. The journal's limits are far below the maximum length.
    fn array(&mut self, members: usize) {
        sure(write_array_len(&mut self.bytes, u32::try_from(members).unwrap_or(u32::MAX)));
    }

    fn map(&mut self, entries: u32) {
        sure(write_map_len(&mut self.bytes, entries));
    }

    fn text(&mut self, text: &str) {
        sure(write_str(&mut self.bytes, text));
    }

    fn int(&mut self, value: u64) {
        sure(write_uint(&mut self.bytes, value));
    }

    fn nil(&mut self) {
        write_nil(&mut self.bytes).unwrap_or_else(|never| match never {});
    }
}

/// vLLM's word for a tier.
const fn medium(tier: Tier) -> &'static str {
    match tier {
        Tier::Device => "GPU",
        Tier::Host => "CPU",
        Tier::Disk => "STORAGE",
    }
}

#[cfg(test)]
#[path = "payload_test.rs"]
mod payload_test;
