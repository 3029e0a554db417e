//! Generates the engine's events in vLLM's frames, from numbers.

use bench_figures::random::mixed;
use kvasir_proto::hash::{Namespace, local_hash, tokens_le};
use kvasir_proto::pb;
use kvasir_proto::pb::published_event::Event;
use kvasir_sim::engine::wire::{BatchStyle, EngineEvent, HashForm, WireForm};

/// Name of the model and the worker.
pub const NAME: &str = "bench";
/// Tokens per block.
pub const BLOCK_SIZE: usize = 16;
/// Blocks per stored event.
pub const EVENT_BLOCKS: u64 = 16;
/// Blocks per prompt: the first has no parent.
const CHAIN_BLOCKS: u64 = 512;
const TOKEN_IDS: u64 = 128_000;

/// Names are multiples of an odd number, which makes the mapping invertible.
const NAMING: u64 = 0x9e37_79b9_7f4a_7c15;
const UNNAMING: u64 = inverse(NAMING);

/// The multiplicative inverse of an odd number modulo 2^64: each step doubles the number of correct bits.
const fn inverse(odd: u64) -> u64 {
    let mut inverse = odd;
    let mut bits = 3;
    while bits < u64::BITS {
        inverse = inverse.wrapping_mul(2_u64.wrapping_sub(odd.wrapping_mul(inverse)));
        bits *= 2;
    }
    inverse
}

const fn name(block: u64) -> u64 {
    (block + 1).wrapping_mul(NAMING)
}

/// Number of the block with a name. Blocks are stored in the order of their numbers.
pub const fn block(name: u64) -> u64 {
    name.wrapping_mul(UNNAMING).wrapping_sub(1)
}

/// Batches of an engine that stores prompt after prompt. Once the engine is full, each new block replaces an old one:
/// the oldest prompt's blocks are evicted, last block first, one event each, like in vLLM.
#[derive(Debug)]
pub struct Stream {
    style: BatchStyle,
    batch_events: u64,
    held_max: u64,
    stored: u64,
    removed: u64,
}

/// One batch.
#[derive(Debug)]
pub struct Batch {
    events: Vec<EngineEvent>,
    style: BatchStyle,
    /// Number of blocks that the batch stores and removes.
    pub operations: u64,
}

impl Batch {
    /// Encodes the batch like the engine's publisher.
    pub fn payload(&self) -> Vec<u8> {
        self.style.encode(1.0, &self.events)
    }

    /// Converts the batch for an engine that publishes over gRPC and hashes the tokens of each block itself.
    pub fn published(&self) -> Vec<pb::PublishedEvent> {
        self.events.iter().map(|event| pb::PublishedEvent { event: published(event) }).collect()
    }
}

fn published(event: &EngineEvent) -> Option<Event> {
    match event {
        EngineEvent::Stored { names, parent, tokens, .. } => {
            Some(Event::Stored(pb::BlocksStored {
                parent_name: *parent,
                names: names.clone(),
                local_hashes: tokens.chunks(BLOCK_SIZE).map(local_of).collect(),
                ..Default::default()
            }))
        }
        EngineEvent::Removed { name, .. } => {
            Some(Event::Removed(pb::BlocksRemoved { names: vec![*name], ..Default::default() }))
        }
        EngineEvent::Cleared => Some(Event::Cleared(pb::BlocksCleared::default())),
    }
}

/// Local hash of a block.
fn local_of(tokens: &[u32]) -> u64 {
    local_hash(&tokens_le(tokens), &[], Namespace::default().seed()).0
}

impl Stream {
    /// Creates an engine with room for `held_max` blocks and `batch_events` stored events per batch.
    pub const fn new(batch_events: u64, held_max: u64) -> Self {
        let style = BatchStyle {
            form: WireForm::Map,
            hashes: HashForm::Integer,
            block_size: BLOCK_SIZE,
            sliding_window: None,
            window_first: false,
            dp_rank: 0,
            copy_counts: false,
        };
        Self { style, batch_events, held_max, stored: 0, removed: 0 }
    }

    /// Number of held blocks.
    pub const fn held(&self) -> u64 {
        self.stored - self.removed
    }

    /// Changes the capacity.
    pub const fn set_held_max(&mut self, held_max: u64) {
        self.held_max = held_max;
    }

    /// Number of the batch that stores this block.
    pub const fn batch_of(&self, block: u64) -> u64 {
        block / (EVENT_BLOCKS * self.batch_events)
    }

    /// The next batch.
    pub fn next_batch(&mut self) -> Batch {
        let mut events = Vec::new();
        let mut operations = 0;
        for _ in 0..self.batch_events {
            while self.held() + EVENT_BLOCKS > self.held_max && self.held() > 0 {
                let chain = self.removed / CHAIN_BLOCKS;
                let at = self.removed % CHAIN_BLOCKS;
                let name = name(chain * CHAIN_BLOCKS + CHAIN_BLOCKS - 1 - at);
                events.push(EngineEvent::Removed { group: 0, name, remaining: 0 });
                self.removed += 1;
                operations += 1;
            }
            events.push(self.next_stored());
            operations += EVENT_BLOCKS;
        }
        Batch { events, style: self.style, operations }
    }

    /// A batch that stores or removes one block that occurs nowhere else, and the block's local hash. The block is the
    /// first block of its own prompt.
    pub fn probe(&self, number: u64, is_stored: bool) -> (Batch, u64) {
        let tokens: Vec<u32> = (0..BLOCK_SIZE as u64)
            .map(|at| (TOKEN_IDS + mixed(number * BLOCK_SIZE as u64 + at) % TOKEN_IDS) as u32)
            .collect();
        let local = local_of(&tokens);
        let name = mixed(number) | 1 << 63;
        let event = if is_stored {
            EngineEvent::Stored { group: 0, names: vec![name], parent: None, tokens, salt: None }
        } else {
            EngineEvent::Removed { group: 0, name, remaining: 0 }
        };
        (Batch { events: vec![event], style: self.style, operations: 1 }, local)
    }

    fn next_stored(&mut self) -> EngineEvent {
        let first = self.stored;
        let parent = (!first.is_multiple_of(CHAIN_BLOCKS)).then(|| name(first - 1));
        self.stored += EVENT_BLOCKS;
        let tokens = first * BLOCK_SIZE as u64..self.stored * BLOCK_SIZE as u64;
        EngineEvent::Stored {
            group: 0,
            names: (first..self.stored).map(name).collect(),
            parent,
            tokens: tokens.map(|token| (mixed(token) % TOKEN_IDS) as u32).collect(),
            salt: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kvasir_engine::decode::EngineKind;
    use kvasir_engine::decode::decode;
    use kvasir_engine::normalise::{Normaliser, NormaliserConfig};
    use kvasir_proto::types::KvEvent;
    use std::collections::BTreeSet;

    #[test]
    fn the_number_of_a_block_is_known_from_its_name() {
        for number in [0, 1, 511, 1 << 40] {
            assert_eq!(block(name(number)), number);
        }
    }

    #[test]
    fn as_many_are_held_as_it_says() {
        let mut stream = Stream::new(2, 1_040);
        let mut normaliser =
            Normaliser::new(NormaliserConfig::new(EngineKind::Vllm, BLOCK_SIZE as u32));
        let mut held = BTreeSet::new();
        for number in 0..200 {
            let frame = stream.next_batch();
            let payload = frame.payload();
            let batch = decode(&payload, EngineKind::Vllm).expect("a good frame");
            let events = normaliser.normalise(batch).events;
            let operations: usize = events.iter().map(KvEvent::operations).sum();
            assert_eq!(operations as u64, frame.operations);
            for event in events {
                match event {
                    KvEvent::Stored { parent, blocks, .. } => {
                        assert!(parent.is_none_or(|parent| held.contains(&parent.0)));
                        held.extend(blocks.iter().map(|block| block.name.0));
                        let last = blocks.last().expect("blocks");
                        assert_eq!(stream.batch_of(block(last.name.0)), number);
                    }
                    KvEvent::Removed { names, .. } => {
                        names.iter().for_each(|name| assert!(held.remove(&name.0)));
                    }
                    KvEvent::StoredNames { .. }
                    | KvEvent::Gone { .. }
                    | KvEvent::Cleared
                    | KvEvent::ClearedTier(_) => {
                        panic!("{event:?}")
                    }
                }
            }
            assert_eq!(held.len() as u64, stream.held());
        }
        assert_eq!(held.len(), 1_040);
    }
}
