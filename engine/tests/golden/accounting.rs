//! Tests that, for any events, every block operation comes out once: for the index, or dropped.

use crate::expected::operations;
use crate::pack::pack;
use kvasir_engine::decode::{EngineKind, decode};
use kvasir_engine::normalise::{DropReason, Normaliser, NormaliserConfig};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use serde_json::{Value, json};

/// Valid values of a field, and some invalid ones.
fn one_of(values: &[Value]) -> impl Strategy<Value = Value> + use<> {
    select(values.to_vec())
}

fn hashes() -> impl Strategy<Value = Vec<Value>> {
    vec(one_of(&[json!(1), json!(2), json!(-3), json!({"$bin": "0102"}), json!(1.5)]), 0..4)
}

/// An event, and its number of operations.
fn event() -> impl Strategy<Value = (Value, u64)> {
    let group = one_of(&[json!(null), json!(0), json!(1), json!(2), json!("x")]);
    let kind = one_of(&[
        json!(null),
        json!("full_attention"),
        json!("mla_attention"),
        json!("sliding_window"),
        json!(7),
    ]);
    let medium = one_of(&[json!(null), json!("gpu"), json!("CPU"), json!("tape"), json!("OBJ")]);
    let locality = one_of(&[json!(null), json!("LOCAL"), json!("REMOTE"), json!("MOON")]);
    let parent = one_of(&[json!(null), json!(1), json!("zz")]);
    let block_size = one_of(&[json!(2), json!(2), json!(1), json!(4), json!(null)]);
    let keys = one_of(&[json!(null), json!([["s"]]), json!([[["i", 0]], null]), json!([[null]])]);
    let tokens = prop_oneof![
        8 => vec(0..3_u32, 0..9).prop_map(|ids| json!(ids)),
        1 => Just(json!([[1, 2]])),
        1 => Just(json!([-1])),
    ];
    let fields = (hashes(), tokens, parent, block_size, keys, medium, locality, (group, kind));
    (0..8_u8, fields).prop_map(|(tag, fields)| {
        let (hashes, tokens, parent, block_size, keys, medium, locality, (group, kind)) = fields;
        let operations = u64::try_from(hashes.len()).expect("short");
        let stored = json!({"type": "BlockStored", "block_hashes": hashes, "token_ids": tokens,
            "parent_block_hash": parent, "block_size": block_size, "extra_keys": keys,
            "medium": medium, "locality": locality, "group_idx": group,
            "kv_cache_spec_kind": kind});
        let slots = json!([
            "BlockStored",
            hashes,
            parent,
            tokens,
            block_size,
            null,
            medium,
            null,
            keys,
            group,
            kind,
            null,
            locality
        ]);
        match tag {
            0..3 => (stored, operations),
            3 => (slots, operations),
            4 => (json!(["BlockRemoved", hashes, medium, group, kind, null, locality]), operations),
            5 => (json!({"type": "AllBlocksCleared"}), 1),
            6 => (json!(["BlockMoved", hashes]), 1),
            _ => (json!({"block_hashes": hashes}), 1),
        }
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, failure_persistence: None, ..Default::default() })]

    #[test]
    fn operations_received_are_kept_or_dropped(
        batches in vec(vec(event(), 0..8), 1..5),
        engine in select(vec![EngineKind::Vllm, EngineKind::Sglang, EngineKind::Trtllm]),
        has_pool in any::<bool>(),
    ) {
        let config = NormaliserConfig { has_pool, ..NormaliserConfig::new(engine, 2) };
        let mut normaliser = Normaliser::new(config);
        for batch in batches {
            let received: u64 = batch.iter().map(|(_, operations)| operations).sum();
            let events: Vec<_> = batch.into_iter().map(|(event, _)| event).collect();
            let payload = pack(&json!([1.0, events, 0]));
            let out = normaliser.normalise(decode(&payload, engine).expect("a batch"));
            let all = || out.events.iter().chain(&out.pool_events);
            let kept: usize = all().map(operations).sum();
            let dropped: u64 = DropReason::ALL.iter().map(|&reason| out.drops.count(reason)).sum();
            prop_assert_eq!(u64::try_from(kept).expect("short") + dropped, received);
            prop_assert_eq!(out.drops.total(), dropped);
            prop_assert!(all().all(|event| event.operations() > 0));
            prop_assert!(has_pool || out.pool_events.is_empty());
        }
    }
}
