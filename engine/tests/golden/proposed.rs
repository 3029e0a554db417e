//! Tests layouts that were proposed for engines and stores, as their proposals describe them. No release
//! sends them yet.

use crate::pack::pack;
use kvasir_engine::decode::{
    Batch, DecodeError, EngineKind, Fault, RawEvent, RawTokens, Unreadable, decode, timestamp_bits,
};
use kvasir_engine::normalise::{DropReason, Normalised, Normaliser, NormaliserConfig};
use kvasir_proto::hash::{Namespace, local_hash};
use kvasir_proto::types::{BlockName, KvEvent, StoredBlock, Tier};
use serde_json::{Value, json};

fn normaliser(engine: EngineKind) -> Normaliser {
    Normaliser::new(NormaliserConfig::new(engine, 2))
}

fn normalised(batch: &Value) -> Normalised {
    let payload = pack(batch);
    let batch = decode(&payload, EngineKind::Vllm).expect("a batch");
    normaliser(EngineKind::Vllm).normalise(batch)
}

fn names(names: &[u64]) -> Vec<BlockName> {
    names.iter().copied().map(BlockName).collect()
}

#[test]
fn a_batch_in_map_form_is_the_batch_in_array_form() {
    let events = json!([
        {"type": "BlockStored", "block_hashes": [1, 2], "parent_block_hash": null,
            "token_ids": [1, 2, 3, 4], "block_size": 2, "lora_id": null, "medium": "GPU"},
        ["BlockRemoved", [1], "GPU"],
    ]);
    let array = pack(&json!([7.5, events, 3]));
    let array = decode(&array, EngineKind::Vllm).expect("a batch");
    for map in [
        json!({"ts": 7.5, "events": events, "data_parallel_rank": 3}),
        json!({"data_parallel_rank": 3, "more": {"a": [1]}, "events": events, "ts": 7.5}),
        json!({"attn_dp_rank": 3, "events": events, "ts": 7.5}),
    ] {
        let payload = pack(&map);
        assert_eq!(decode(&payload, EngineKind::Vllm).as_ref(), Ok(&array), "{map}");
        assert_eq!(timestamp_bits(&payload), Some(7.5_f64.to_bits()), "{map}");
    }
}

#[test]
fn envelopes_in_map_form() {
    let check = |payload: Value, expected: Result<(f64, Option<u32>), DecodeError>| {
        let payload = pack(&payload);
        let batch = decode(&payload, EngineKind::Vllm);
        let found = batch.map(|Batch { ts_bits, rank, .. }| (f64::from_bits(ts_bits), rank));
        assert_eq!(found, expected);
    };
    check(json!({"ts": 1.5, "events": []}), Ok((1.5, None)));
    check(json!({"ts": 7, "events": [], "data_parallel_rank": null}), Ok((7.0, None)));
    check(json!({}), Err(DecodeError::TimeStamp));
    check(json!({"events": []}), Err(DecodeError::TimeStamp));
    check(json!({"ts": "1.5", "events": []}), Err(DecodeError::TimeStamp));
    check(json!({"ts": 1.5}), Err(DecodeError::Events));
    check(json!({"ts": 1.5, "events": {}}), Err(DecodeError::Events));
    check(json!({"ts": 1.5, "events": [], "data_parallel_rank": -1}), Err(DecodeError::Rank));
    // {"ts": 7} and an extra byte; {"ts": a reserved byte}; a missing entry.
    check(
        json!({"$raw": "82a2747307a66576656e74739000"}),
        Err(DecodeError::TrailingBytes { bytes: 1 }),
    );
    check(json!({"$raw": "81a27473c1"}), Err(DecodeError::Reserved { offset: 4 }));
    check(json!({"$raw": "82a2747307"}), Err(DecodeError::Truncated { payload_bytes: 5 }));
    let events = kvasir_engine::decode::PAYLOAD_EVENTS_MAX + 1;
    check(
        json!({"ts": 1, "events": vec![Value::Null; events]}),
        Err(DecodeError::TooManyEvents { events }),
    );
}

fn removed(counts: &Value) -> Value {
    json!({"type": "BlockRemoved", "block_hashes": [1, 2, 3], "medium": "GPU",
        "remaining_copy_counts": counts})
}

#[test]
fn remaining_copies_decide_which_blocks_are_gone() {
    let out = normalised(&json!([1, [removed(&json!([0, 2, 0]))]]));
    assert_eq!(out.events, [KvEvent::Gone { tier: Tier::Device, names: names(&[1, 3]) }]);
    assert_eq!((out.drops.count(DropReason::CopiesRemain), out.drops.total()), (1, 1));
    let out = normalised(&json!([1, [removed(&json!([1, 2, u32::MAX]))]]));
    assert_eq!((out.events, out.drops.count(DropReason::CopiesRemain)), (vec![], 3));
    // Engines that do not count send nil, or omit the field.
    let out = normalised(&json!([1, [removed(&Value::Null)]]));
    assert_eq!(out.events, [KvEvent::Removed { tier: Tier::Device, names: names(&[1, 2, 3]) }]);
    assert_eq!(out.drops.total(), 0);
}

#[test]
fn remaining_copies_that_cannot_be_read_cost_their_event() {
    for (wrong, fault) in [
        (json!([0, 0]), Fault::Length),
        (json!([0, 0, 0, 0]), Fault::Length),
        (json!([]), Fault::Length),
        (json!(0), Fault::Type),
        (json!("0"), Fault::Type),
        (json!([0, -1, 0]), Fault::Type),
        (json!([0, 4_294_967_296_u64, 0]), Fault::Type),
        (json!([0, 1.0, 0]), Fault::Type),
        (json!([0, null, 0]), Fault::Type),
        (json!([0, [0], 0]), Fault::Type),
    ] {
        let payload = pack(&json!([1, [removed(&wrong), ["BlockRemoved", [9]]]]));
        let batch = decode(&payload, EngineKind::Vllm).expect("a batch");
        let unreadable = Unreadable { field: "remaining_copy_counts", fault, operations: 3 };
        assert_eq!(batch.events[0], RawEvent::Unreadable(unreadable), "{wrong}");
        let out = normaliser(EngineKind::Vllm).normalise(batch);
        assert_eq!(out.drops.count(DropReason::Unreadable), 3, "{wrong}");
        assert_eq!(out.events, [KvEvent::Removed { tier: Tier::Device, names: names(&[9]) }]);
    }
}

/// An event as `mooncake_master` sends it without legacy aliases.
fn rfc_event(event_type: &str, more: &Value) -> Value {
    let mut event = json!({
        "event_id": 42, "timestamp": 1_739_145_600_000_u64, "event_type": event_type,
        "model_name": "m", "block_size": null, "additional_salt": null, "lora_name": null,
        "tenant_id": "default", "backend_id": "store-0", "medium": "cpu", "dp_rank": 0,
    });
    let more = more.as_object().expect("a map").clone();
    event.as_object_mut().expect("a map").extend(more);
    event
}

#[test]
fn events_of_rfc_1527_need_no_aliases() {
    let stored = json!({"seq_hashes": [11, 12], "base_block_idx": null, "parent_hash": null,
        "token_ids": null, "object_key": "k"});
    let out = normalised(&json!([
        1_739_145_600_000_u64,
        [
            rfc_event("stored", &stored),
            rfc_event("removed", &json!({"seq_hashes": [11], "base_block_idx": null})),
            rfc_event("removed", &json!({"seq_hashes": [12], "medium": "disk"})),
            rfc_event("cleared", &json!({})),
            rfc_event("moved", &json!({"seq_hashes": [12]})),
        ],
        0
    ]));
    let expected = [
        KvEvent::StoredNames { tier: Tier::Host, names: names(&[11, 12]) },
        KvEvent::Removed { tier: Tier::Host, names: names(&[11]) },
        KvEvent::Removed { tier: Tier::Disk, names: names(&[12]) },
        // Only on its medium.
        KvEvent::ClearedTier(Tier::Host),
    ];
    assert_eq!(out.events, expected);
    assert_eq!((out.drops.count(DropReason::UnknownEvent), out.drops.total()), (1, 1));
}

#[test]
fn events_of_rfc_1527_with_tokens_are_matched_by_content() {
    let stored = json!({"seq_hashes": [11], "base_block_idx": 5, "parent_hash": 10,
        "token_ids": [1, 2], "block_size": 2, "additional_salt": "s", "lora_name": "l",
        "medium": "gpu"});
    let out = normalised(&json!([1, [rfc_event("stored", &stored)], 0]));
    let seed = Namespace { lora_name: "l", cache_salt: "s" }.seed();
    let local = local_hash(&[1, 0, 0, 0, 2, 0, 0, 0], &[], seed);
    let blocks = vec![StoredBlock { name: BlockName(11), local }];
    let parent = Some(BlockName(10));
    let tier = Tier::Device;
    assert_eq!(out.events, [KvEvent::Stored { parent, tier, blocks }]);
}

#[test]
fn where_aliases_are_there_they_count() {
    let aliased = json!({"type": "BlockStored", "block_hashes": [1], "parent_block_hash": null,
        "seq_hashes": [11], "parent_hash": 10, "token_ids": null});
    let out = normalised(&json!([1, [rfc_event("stored", &aliased)], 0]));
    assert_eq!(out.events, [KvEvent::StoredNames { tier: Tier::Host, names: names(&[1]) }]);
    // The names of one dialect are unknown in the other.
    let mixed = json!({"type": "BlockRemoved", "seq_hashes": [1]});
    let payload = pack(&json!([1, [mixed, rfc_event("removed", &json!({"block_hashes": [1]}))]]));
    for event in decode(&payload, EngineKind::Vllm).expect("a batch").events {
        let unreadable = Unreadable { field: "block_hashes", fault: Fault::Missing, operations: 1 };
        assert_eq!(event, RawEvent::Unreadable(unreadable));
    }
}

#[test]
fn what_a_store_leaves_out_it_does_not_know() {
    let payload = pack(&json!([1, [{"event_type": "stored", "seq_hashes": [11]}]]));
    let batch = decode(&payload, EngineKind::Vllm).expect("a batch");
    let [RawEvent::Stored(stored)] = &batch.events[..] else { panic!("{batch:?}") };
    assert_eq!(stored.tokens, RawTokens::Ids(vec![]));
    assert_eq!((stored.block_size, stored.parent), (0, None));
    // An engine must send its tokens.
    let payload = pack(&json!([1, [{"type": "BlockStored", "block_hashes": [11]}]]));
    let batch = decode(&payload, EngineKind::Vllm).expect("a batch");
    let unreadable = Unreadable { field: "token_ids", fault: Fault::Missing, operations: 1 };
    assert_eq!(batch.events, [RawEvent::Unreadable(unreadable)]);
}
