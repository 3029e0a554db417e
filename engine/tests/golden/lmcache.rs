//! Tests the events that LMCache 0.5.6 publishes beside vLLM's own: a chunk of 256 tokens under one hash, on
//! medium `cpu`. A chunk has one token too many unless the prompt ends, and parent 0 where it continues a
//! prompt.

use crate::pack::pack;
use kvasir_engine::decode::{EngineKind, decode};
use kvasir_engine::normalise::{DropReason, Normalised, Normaliser, NormaliserConfig};
use kvasir_proto::hash::{Namespace, local_hashes};
use kvasir_proto::types::{BlockName, KvEvent, LocalHash, Reason, Tier};
use serde_json::{Value, json};
use std::ops::Range;

const BLOCK_SIZE: u32 = 16;
const CHUNK: u32 = 256;
const FIRST: i64 = -4_194_702_594_034_706_580;
const SECOND: i64 = 3_392_711_169_934_472_876;

fn normaliser(chunks: &[(&str, u32)]) -> Normaliser {
    let connector_chunks = chunks.iter().map(|&(at, blocks)| (at.to_owned(), blocks)).collect();
    let config = NormaliserConfig::new(EngineKind::Vllm, BLOCK_SIZE);
    Normaliser::new(NormaliserConfig { connector_chunks, ..config })
}

fn chunk(hash: i64, parent: &Value, ids: Range<u32>) -> Value {
    let ids: Vec<u32> = ids.collect();
    json!(["BlockStored", [hash], parent, ids, CHUNK, null, "cpu"])
}

fn take(normaliser: &mut Normaliser, events: &Value) -> Normalised {
    let payload = pack(&json!([7.5, events]));
    normaliser.normalise(decode(&payload, EngineKind::Vllm).expect("a batch"))
}

/// The local hashes in a query of these tokens.
fn queried(ids: Range<u32>) -> Vec<LocalHash> {
    let tokens_le: Vec<u8> = ids.flat_map(u32::to_le_bytes).collect();
    let mut out = Vec::new();
    local_hashes(&tokens_le, 16, Namespace::default().seed(), &[], &mut out);
    out
}

fn locals(event: &KvEvent) -> (Option<BlockName>, Vec<LocalHash>) {
    let KvEvent::Stored { parent, tier: Tier::Host, blocks } = event else { panic!("{event:?}") };
    (*parent, blocks.iter().map(|block| block.local).collect())
}

#[test]
fn chunks_count_in_host_memory_block_by_block() {
    let mut normaliser = normaliser(&[("CPU", CHUNK / BLOCK_SIZE)]);
    let second = chunk(SECOND, &json!(FIRST), CHUNK..2 * CHUNK);
    let events = json!([chunk(FIRST, &Value::Null, 0..CHUNK + 1), second]);
    let out = take(&mut normaliser, &events);
    assert_eq!((out.drops.total(), out.reasons()), (0, Vec::new()));
    let [first, second] = &out.events[..] else { panic!("{out:?}") };
    assert_eq!(locals(first), (None, queried(0..CHUNK)));
    let parent = BlockName(FIRST.cast_unsigned());
    assert_eq!(locals(second), (Some(parent), queried(CHUNK..2 * CHUNK)));
    // The end of a prompt, with `save_unfull_chunk`, is not a complete chunk.
    let ids: Vec<u32> = (0..88).collect();
    let tail = json!([["BlockStored", [9], SECOND, ids, 88, null, "cpu"]]);
    let out = take(&mut normaliser, &tail);
    assert_eq!(out.drops.iter().collect::<Vec<_>>(), [(DropReason::PartialBlock, 1)]);
    assert_eq!(out.reasons(), []);
    // The multiprocess mode announces evictions of complete chunks.
    let out = take(&mut normaliser, &json!([["BlockRemoved", [SECOND], "CPU"]]));
    let [KvEvent::Removed { tier: Tier::Host, names }] = &out.events[..] else { panic!("{out:?}") };
    assert_eq!(names.len(), 16);
}

#[test]
fn parent_0_is_no_root() {
    let mut normaliser = normaliser(&[("CPU", CHUNK / BLOCK_SIZE)]);
    let out = take(&mut normaliser, &json!([chunk(SECOND, &json!(0), CHUNK..2 * CHUNK + 1)]));
    assert_eq!(out.events, []);
    assert_eq!(out.drops.iter().collect::<Vec<_>>(), [(DropReason::UnknownParent, 1)]);
    assert_eq!(out.reasons()[0].0, Reason::UnknownContent);
}

#[test]
fn without_a_size_chunks_are_rejected_with_their_medium_and_the_size_to_state() {
    for chunks in [&[][..], &[("CPU", 8)], &[("DISK", 16)]] {
        let mut normaliser = normaliser(chunks);
        let out = take(&mut normaliser, &json!([chunk(FIRST, &Value::Null, 0..CHUNK + 1)]));
        assert_eq!(out.events, []);
        assert_eq!(out.drops.iter().collect::<Vec<_>>(), [(DropReason::BlockSize, 1)]);
        let example = "block_size=256 medium=cpu".to_owned();
        assert_eq!(out.reasons(), [(Reason::BlockSize, 1, example)]);
        let stated = out.drops.stated_block_size().expect("another size");
        assert_eq!((&*stated.medium, stated.is_of_device()), ("cpu", false));
        assert_eq!(stated.chunk_blocks(BLOCK_SIZE), Some(16));
    }
}
