//! The measured operations, each with a yardstick.

use super::fleet::{EVENT_BLOCKS, Fleet, PROMPT_BLOCKS, PROMPTS, Turns, locals};
use crate::events::{blocks_of, dump, stored};
use bench_figures::random::mixed;
use kvasir_engine::decode::{EngineKind, decode};
use kvasir_engine::normalise::{Normaliser, NormaliserConfig};
use kvasir_index::{DumpRecord, Query, QueryKey, Scratch, SharedBlocks};
use kvasir_proto::hash::{Namespace, local_hashes, sequence_hashes, tokens_le};
use kvasir_proto::types::{KvEvent, LocalHash, StoredBlock, Tier, TierSet, WorkerId};
use kvasir_sim::engine::wire::{BatchStyle, EngineEvent, HashForm, WireForm};
use std::cell::RefCell;
use std::collections::HashMap;
use std::hint::black_box;
use std::rc::Rc;

const BLOCK_SIZE: usize = 16;
/// Number of keys in the table that is the yardstick for lookups and changes: as many as the fleet has pairs.
const KEYS: u64 = 1 << 20;

/// An operation and its yardstick.
pub struct Case {
    pub name: &'static str,
    /// Description of the yardstick.
    pub against: &'static str,
    pub operation: Box<dyn FnMut()>,
    pub yardstick: Box<dyn FnMut()>,
}

/// All cases.
pub fn all() -> Vec<Case> {
    let fleet = Rc::new(RefCell::new(Fleet::build()));
    let table: HashMap<u64, u64> = (0..KEYS).map(|key| (mixed(key), key)).collect();
    let table = Rc::new(RefCell::new(table));
    vec![
        hash(),
        frame("decode-16", 16),
        frame("decode-512", 512),
        apply(&fleet, &table),
        lookup("lookup-64", 64, &fleet, &table),
        lookup("lookup-512", 512, &fleet, &table),
        lookup_shared("lookup-512-shared", &table),
        dumped(&fleet),
    ]
}

/// Yardstick: copies these bytes.
fn copying(bytes: Vec<u8>) -> Box<dyn FnMut()> {
    let mut copy = vec![0; bytes.len()];
    Box::new(move || {
        copy.copy_from_slice(black_box(&bytes));
        black_box(&mut copy);
    })
}

/// Hashes 4,096 tokens to local and sequence hashes.
fn hash() -> Case {
    let tokens: Vec<u32> = (0..4_096).map(|at| mixed(at).to_le_bytes()[0].into()).collect();
    let seed = Namespace::default().seed();
    let bytes = tokens_le(&tokens).into_owned();
    let mut hashes = Vec::new();
    let operation = Box::new(move || {
        hashes.clear();
        local_hashes(&tokens_le(black_box(&tokens)), BLOCK_SIZE, seed, &[], &mut hashes);
        black_box(sequence_hashes(&hashes).last());
    });
    let against = "copying the tokens";
    Case { name: "hash-4096-tokens", against, operation, yardstick: copying(bytes) }
}

/// Decodes a vLLM batch with one stored event to events of the index.
#[expect(clippy::expect_used, reason = "the frame is a good one")]
fn frame(name: &'static str, blocks: u64) -> Case {
    let style = BatchStyle {
        form: WireForm::Array,
        hashes: HashForm::Integer,
        block_size: BLOCK_SIZE,
        sliding_window: None,
        window_first: false,
        dp_rank: 0,
        copy_counts: false,
    };
    let tokens = (0..blocks * BLOCK_SIZE as u64).map(|at| u32::from_le_bytes([at as u8, 3, 1, 0]));
    let names = (0..blocks).map(mixed).collect();
    let tokens = tokens.collect();
    let event = EngineEvent::Stored { group: 0, names, parent: None, tokens, salt: None };
    let payload = style.encode(1.0, &[event]);
    let bytes = payload.clone();
    let mut normaliser =
        Normaliser::new(NormaliserConfig::new(EngineKind::Vllm, BLOCK_SIZE as u32));
    let mut read = move || {
        let batch = decode(black_box(&payload), EngineKind::Vllm).expect("a good frame");
        normaliser.normalise(batch)
    };
    let operations: usize = read().events.iter().map(|event| event.operations()).sum();
    assert_eq!(operations as u64, blocks, "{name}");
    let operation = Box::new(move || {
        black_box(read());
    });
    Case { name, against: "copying the frame", operation, yardstick: copying(bytes) }
}

/// Stores a prompt for one worker and removes it again, in events of 16 blocks.
fn apply(fleet: &Rc<RefCell<Fleet>>, table: &Rc<RefCell<HashMap<u64, u64>>>) -> Case {
    let fleet = Rc::clone(fleet);
    let table = Rc::clone(table);
    let new = locals(PROMPTS + 1);
    let blocks = blocks_of(&new);
    let store = stored(&blocks, EVENT_BLOCKS);
    let removed = |part: &[StoredBlock]| KvEvent::Removed {
        tier: Tier::Device,
        names: part.iter().map(|block| block.name).collect(),
    };
    let remove: Vec<KvEvent> = blocks.chunks(EVENT_BLOCKS).rev().map(removed).collect();
    let operation = Box::new(move || {
        let mut fleet = fleet.borrow_mut();
        fleet.apply(5, &store);
        fleet.apply(5, &remove);
    });
    let yardstick = Box::new(move || {
        let mut table = table.borrow_mut();
        for local in &new {
            table.insert(local.0, 0);
        }
        for local in &new {
            table.remove(&local.0);
        }
    });
    let against = "a hash table with as many keys";
    Case { name: "apply-store-remove-512", against, operation, yardstick }
}

/// Looks up the first blocks of a prompt that two workers have, a different prompt each time.
fn lookup(
    name: &'static str,
    blocks: usize,
    fleet: &Rc<RefCell<Fleet>>,
    table: &Rc<RefCell<HashMap<u64, u64>>>,
) -> Case {
    let fleet = Rc::clone(fleet);
    let mut scratch = Scratch::default();
    let mut turns = Turns::new(blocks);
    let operation = Box::new(move || {
        let prompt = turns.next_prompt();
        fleet.borrow().index.find(query(prompt, None), &mut scratch);
        assert_eq!(scratch.matches().len(), 2);
    });
    let yardstick = asking(blocks, table);
    Case { name, against: "a hash table asked for as many keys", operation, yardstick }
}

/// Looks up a prompt that two workers and a shared pool have, a different prompt each time.
fn lookup_shared(name: &'static str, table: &Rc<RefCell<HashMap<u64, u64>>>) -> Case {
    let Fleet { index, sources } = Fleet::build_with_pool();
    let mut scratch = Scratch::default();
    let mut shared = SharedBlocks::default();
    let mut turns = Turns::new(PROMPT_BLOCKS);
    let operation = Box::new(move || {
        let prompt = turns.next_prompt();
        shared.begin(prompt.len());
        index.add_shared(QueryKey::Locals(prompt), &mut shared, || true);
        index.find(query(prompt, Some(&shared)), &mut scratch);
        assert_eq!(scratch.matches().len(), sources.len());
    });
    let yardstick = asking(PROMPT_BLOCKS, table);
    Case { name, against: "a hash table asked for as many keys", operation, yardstick }
}

fn query<'a>(prompt: &'a [LocalHash], shared: Option<&'a SharedBlocks>) -> Query<'a> {
    let key = QueryKey::Locals(prompt);
    Query { key, tiers: TierSet::ALL, workers: None, minimum_overlap: 1, shared, prompt: None }
}

/// Yardstick: looks up `blocks` keys in a table.
fn asking(blocks: usize, table: &Rc<RefCell<HashMap<u64, u64>>>) -> Box<dyn FnMut()> {
    let table = Rc::clone(table);
    let mut at = 0;
    Box::new(move || {
        let table = table.borrow();
        for _ in 0..blocks {
            at = (at + 1) % KEYS;
            black_box(table.get(&mixed(mixed(at) % KEYS)));
        }
    })
}

/// Dumps all blocks of one worker.
#[expect(clippy::expect_used, reason = "the name is a good one")]
fn dumped(fleet: &Rc<RefCell<Fleet>>) -> Case {
    let fleet = Rc::clone(fleet);
    let worker = WorkerId::new("worker-0").expect("a name");
    let mut chunk: Vec<DumpRecord> = Vec::new();
    let mut dump = move || dump(&mut fleet.borrow_mut().index, &worker, &mut chunk);
    let records = dump();
    assert!(records >= PROMPT_BLOCKS, "{records} records");
    let operation = Box::new(move || {
        black_box(dump());
    });
    let yardstick = copying(vec![1; records * size_of::<DumpRecord>()]);
    Case { name: "dump-worker", against: "copying the records", operation, yardstick }
}
