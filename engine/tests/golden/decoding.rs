//! Tests that every golden frame decodes to its recorded meaning, and cases beyond the golden frames.

use crate::expected;
use crate::frames::{frames, hex, lines};
use crate::pack::pack;
use kvasir_engine::decode::{
    Batch, DecodeError, EngineKind, Fault, PAYLOAD_EVENTS_MAX, Place, RawEvent, RawStored,
    RawTokens, Unreadable, decode, timestamp_bits,
};
use kvasir_proto::limits::EVENT_BLOCKS_MAX;
use kvasir_proto::types::{BlockName, LocalHash};
use serde_json::{Value, json};

#[test]
fn golden_frames_decode_to_their_meaning() {
    for frame in frames() {
        let label = frame.label();
        let batch = decode(&frame.payload, frame.engine).expect(&label);
        let ts = frame.decoded[0].as_f64().expect("time stamp");
        // The recorded text is the shortest that parses to the same number.
        assert!((f64::from_bits(batch.ts_bits) - ts).abs() < 1e-6, "{label}");
        assert_eq!(timestamp_bits(&frame.payload), Some(batch.ts_bits), "{label}");
        let rank = frame.decoded.get(2).and_then(Value::as_u64);
        assert_eq!(batch.rank.map(u64::from), rank, "{label}");
        let events = frame.decoded[1].as_array().expect("events");
        let expected: Vec<_> =
            events.iter().map(|event| expected::event(event, frame.engine)).collect();
        assert_eq!(batch.events, expected, "{label}");
    }
}

#[test]
fn the_readme_shows_a_golden_frame_and_its_meaning() {
    let readme = include_str!("../../README.md");
    let payload = readme.lines().find_map(|line| line.strip_prefix("payload   ")).expect("a frame");
    let meaning = readme.split("```json\n").nth(1).and_then(|rest| rest.split("```").next());
    let meaning: Value = serde_json::from_str(meaning.expect("its meaning")).expect("JSON");
    let shown = frames().into_iter().find(|frame| frame.payload == hex(payload));
    assert_eq!(shown.expect("a golden frame").decoded, meaning);
}

#[test]
fn replayed_payloads_decode() {
    let mut decoded = 0;
    for line in lines("vllm-replay.jsonl") {
        let frames = line["first_reply_hex"].as_array().expect("frames");
        let payload = hex(frames.last().and_then(Value::as_str).expect("payload"));
        if payload.is_empty() {
            continue;
        }
        let batch = decode(&payload, EngineKind::Vllm).expect("a batch");
        assert_eq!(batch.events.len(), 1, "{line}");
        assert!(
            matches!(
                &batch.events[0],
                RawEvent::Stored(_) | RawEvent::Removed(_) | RawEvent::Cleared(_)
            ),
            "{line}"
        );
        decoded += 1;
    }
    assert!(decoded >= 63, "only {decoded} exchanges carry a batch");
}

/// The events of a batch that must decode.
fn events(payload: &[u8], engine: EngineKind) -> Vec<RawEvent<'_>> {
    decode(payload, engine).expect("a batch").events
}

fn stored<'a>(events: &'a [RawEvent<'a>], index: usize) -> &'a RawStored<'a> {
    match &events[index] {
        RawEvent::Stored(stored) => stored,
        other => panic!("{other:?} is no stored event"),
    }
}

#[test]
fn envelopes() {
    let check = |payload: Value, expected: Result<(f64, Option<u32>), DecodeError>| {
        let payload = pack(&payload);
        let batch = decode(&payload, EngineKind::Custom);
        let found = batch.map(|Batch { ts_bits, rank, .. }| (f64::from_bits(ts_bits), rank));
        assert_eq!(found, expected);
    };
    check(json!([1.5, []]), Ok((1.5, None)));
    check(json!([1.5, [], null]), Ok((1.5, None)));
    check(json!([7, [], 3]), Ok((7.0, Some(3))));
    check(json!([-7, [], 4_294_967_295_u32, {"a": [1]}, "more"]), Ok((-7.0, Some(u32::MAX))));
    check(json!([{"$raw": "ca3fc00000"}, []]), Ok((1.5, None)));
    check(json!([1.5]), Err(DecodeError::Envelope));
    check(json!([]), Err(DecodeError::Envelope));
    check(json!(null), Err(DecodeError::Envelope));
    check(json!(["1.5", []]), Err(DecodeError::TimeStamp));
    check(json!([1.5, {}]), Err(DecodeError::Events));
    check(json!([1.5, [], -1]), Err(DecodeError::Rank));
    check(json!([1.5, [], 4_294_967_296_u64]), Err(DecodeError::Rank));
    check(json!([1.5, [], "0"]), Err(DecodeError::Rank));
    check(
        json!({"$raw": "92cb3ff80000000000009000"}),
        Err(DecodeError::TrailingBytes { bytes: 1 }),
    );
    check(json!({"$raw": ""}), Err(DecodeError::Truncated { payload_bytes: 0 }));
    check(json!({"$raw": "92c1c0"}), Err(DecodeError::Reserved { offset: 1 }));
    // A list of 2^32-1 events in 6 bytes.
    check(json!([1, {"$raw": "ddffffffff"}]), Err(DecodeError::Truncated { payload_bytes: 7 }));
    let events = PAYLOAD_EVENTS_MAX + 1;
    check(json!([1, vec![Value::Null; events]]), Err(DecodeError::TooManyEvents { events }));
}

#[test]
fn keys_come_in_any_order_among_others() {
    let payload = pack(&json!([1, [{
        "zzz": {"nested": [1, {"deep": [[]]}]},
        "token_ids": [1, 2, 3, 4],
        "num_block_tokens": [2, 2],
        "parent_block_hash": -1,
        "medium": "GPU",
        "block_size": 2,
        "block_hashes": [5, 6],
        "group_idx": 3,
        "cache_salt": "s",
        "lora_name": "l",
        "type": "BlockStored",
    }], 0]));
    let events = events(&payload, EngineKind::Vllm);
    let stored = stored(&events, 0);
    assert_eq!(stored.names, [BlockName(5), BlockName(6)]);
    assert_eq!(stored.parent, Some(BlockName(u64::MAX)));
    assert_eq!(stored.tokens, RawTokens::Ids(vec![1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 4, 0, 0, 0]));
    assert_eq!(stored.num_block_tokens, Some((2, 2)));
    assert_eq!((stored.lora_name, stored.cache_salt), (Some("l"), Some("s")));
    assert_eq!(stored.place.group, Some(3));
}

/// Fields that only agents send, which no longer have tokens.
#[test]
fn local_hashes_are_read_of_custom_engines_only() {
    let payload = |hashes: &Value| {
        pack(&json!([1, [{
            "type": "BlockStored", "block_hashes": [5, 6], "parent_block_hash": null,
            "token_ids": [], "block_size": 2, "local_hashes": hashes,
        }], 0]))
    };
    let hashes = payload(&json!([u64::MAX, -2]));
    let of_custom = events(&hashes, EngineKind::Custom);
    let of_custom = stored(&of_custom, 0);
    assert_eq!(of_custom.local_hashes, Some(vec![LocalHash(u64::MAX), LocalHash(u64::MAX - 1)]));
    assert_eq!(of_custom.tokens, RawTokens::Ids(vec![]));
    for engine in [EngineKind::Vllm, EngineKind::Sglang, EngineKind::Trtllm] {
        assert_eq!(stored(&events(&hashes, engine), 0).local_hashes, None);
        assert_eq!(stored(&events(&payload(&json!("x")), engine), 0).local_hashes, None);
    }
    let none = payload(&Value::Null);
    assert_eq!(stored(&events(&none, EngineKind::Custom), 0).local_hashes, None);
    for (wrong, fault) in [
        (json!("x"), Fault::Type),
        (json!([1, "x"]), Fault::Type),
        (json!(vec![0; EVENT_BLOCKS_MAX + 1]), Fault::TooMany),
    ] {
        let unreadable = Unreadable { field: "local_hashes", fault, operations: 2 };
        let payload = payload(&wrong);
        assert_eq!(events(&payload, EngineKind::Custom), [RawEvent::Unreadable(unreadable)]);
    }
}

#[test]
fn keys_that_are_no_strings_are_passed_over() {
    // {1: 2, [3]: 4, "type": "BlockRemoved", "block_hashes": [9]}
    let event =
        "8401029103 04 a474797065ac426c6f636b52656d6f766564 ac626c6f636b5f686173686573 9109";
    let payload = pack(&json!([1, [{"$raw": event.replace(' ', "")}]]));
    assert!(matches!(&events(&payload, EngineKind::Vllm)[0],
        RawEvent::Removed(removed) if removed.names == [BlockName(9)]));
}

#[test]
fn slots_beyond_the_known_are_passed_over() {
    let payload = pack(&json!([1, [
        ["BlockStored", [1], null, [7], 1, null, "CPU", "l", [null], 2, "mamba", 5, "LOCAL", "o", [[]]],
        ["BlockRemoved", [1], "CPU", 2, "mamba", 5, "REMOTE", "o", {"x": 1}],
        ["AllBlocksCleared", "o", [1]],
    ]]));
    let events = events(&payload, EngineKind::Vllm);
    let stored = stored(&events, 0);
    assert_eq!((stored.place.kind, stored.place.locality), (Some("mamba"), Some("LOCAL")));
    let RawEvent::Removed(removed) = &events[1] else { panic!("{events:?}") };
    assert_eq!((removed.place.kind, removed.place.locality), (Some("mamba"), Some("REMOTE")));
    let everywhere = Place { medium: Some("o"), ..Place::default() };
    assert_eq!(events[2], RawEvent::Cleared(everywhere));
}

#[test]
fn hashes_of_every_form() {
    let long = "00112233445566778899aabbccddeeff";
    let check = |hash: Value, engine: EngineKind, expected: u64| {
        let payload = pack(&json!([1, [["BlockRemoved", [hash]]]]));
        let expected = vec![BlockName(expected)];
        assert!(
            matches!(&events(&payload, engine)[0], RawEvent::Removed(r) if r.names == expected),
            "{hash} of {engine:?}"
        );
    };
    for engine in [EngineKind::Vllm, EngineKind::Trtllm, EngineKind::Custom] {
        check(json!({"$bin": long}), engine, 0x8899_aabb_ccdd_eeff);
        check(json!(long), engine, 0x8899_aabb_ccdd_eeff);
    }
    check(json!({"$bin": long}), EngineKind::Sglang, 0x0011_2233_4455_6677);
    check(json!(long), EngineKind::Sglang, 0x0011_2233_4455_6677);
    check(json!({"$bin": "0102"}), EngineKind::Vllm, 0x0102);
    check(json!("ff"), EngineKind::Trtllm, 0xff);
    check(json!(u64::MAX), EngineKind::Vllm, u64::MAX);
    check(json!(-1), EngineKind::Vllm, u64::MAX);
    check(json!(i64::MIN), EngineKind::Vllm, 1 << 63);
    // The same number in other widths.
    for raw in [
        "05",
        "cc05",
        "cd0005",
        "ce00000005",
        "cf0000000000000005",
        "d005",
        "d10005",
        "d200000005",
        "d30000000000000005",
    ] {
        check(json!({"$raw": raw}), EngineKind::Vllm, 5);
    }
    for raw in ["e0", "d0e0", "d1ffe0", "d2ffffffe0", "d3ffffffffffffffe0"] {
        check(json!({"$raw": raw}), EngineKind::Vllm, (-32_i64).cast_unsigned());
    }
}

#[test]
fn a_wrong_field_costs_its_event_only() {
    let good = json!(["BlockStored", [1], null, [7], 1, null]);
    let check = |event: Value, field: &'static str, fault: Fault, operations: usize| {
        let payload = pack(&json!([1, [good, event, good], 4]));
        let batch = decode(&payload, EngineKind::Vllm).expect("a batch");
        let unreadable = RawEvent::Unreadable(Unreadable { field, fault, operations });
        assert_eq!(batch.events[1], unreadable, "{event}");
        assert_eq!(batch.events[0], batch.events[2], "{event}");
        assert_eq!(stored(&batch.events, 2).names, [BlockName(1)], "{event}");
        assert_eq!(batch.rank, Some(4), "{event}");
    };
    let kind = Fault::Type;
    let missing = Fault::Missing;
    check(json!(null), "type", kind, 1);
    check(json!("BlockStored"), "type", kind, 1);
    check(json!([]), "type", missing, 1);
    check(json!([1, [2]]), "type", kind, 1);
    check(json!({}), "type", missing, 1);
    check(json!({"type": ["BlockStored"], "x": [1]}), "type", kind, 1);
    check(json!(["BlockStored"]), "block_hashes", missing, 1);
    check(json!(["BlockStored", null, null, [], 1]), "block_hashes", kind, 1);
    check(json!(["BlockStored", [1, 2.5, 3], null, [], 1]), "block_hashes", kind, 3);
    check(json!(["BlockStored", [1, [2, [3]]], null, [], 1]), "block_hashes", kind, 2);
    check(json!(["BlockStored", [{"$bin": ""}], null, [], 1]), "block_hashes", kind, 1);
    check(json!(["BlockStored", [""], null, [], 1]), "block_hashes", kind, 1);
    check(json!(["BlockStored", ["xyz"], null, [], 1]), "block_hashes", kind, 1);
    check(json!(["BlockStored", [1, 2], "-", [7], 1]), "parent_block_hash", kind, 2);
    check(json!(["BlockStored", [1, 2], null, [7, -1], 1]), "token_ids", kind, 2);
    check(json!(["BlockStored", [1, 2], null, [7, [8, 9]], 1]), "token_ids", kind, 2);
    check(json!(["BlockStored", [1, 2], null, {"a": 1}, 1]), "token_ids", kind, 2);
    check(json!(["BlockStored", [1, 2], null]), "token_ids", missing, 2);
    check(json!(["BlockStored", [1, 2], null, [7]]), "block_size", missing, 2);
    check(json!(["BlockStored", [1], null, [7], -1]), "block_size", kind, 1);
    check(json!(["BlockStored", [1], null, [7], {"$raw": "d0ff"}]), "block_size", kind, 1);
    check(json!(["BlockStored", [1], null, [7], 1, "7"]), "lora_id", kind, 1);
    check(json!(["BlockStored", [1], null, [7], 1, null, 3]), "medium", kind, 1);
    check(json!(["BlockStored", [1], null, [7], 1, null, {"$raw": "a1ff"}]), "medium", kind, 1);
    check(json!(["BlockStored", [1], null, [7], 1, null, null, 3]), "lora_name", kind, 1);
    check(
        json!(["BlockStored", [1], null, [7], 1, null, null, {"cache_salt": 3}]),
        "lora_name",
        kind,
        1,
    );
    check(json!(["BlockRemoved", [1, 2, 3], "GPU", "0"]), "group_idx", kind, 3);
    check(json!({"type": "BlockRemoved", "medium": "GPU"}), "block_hashes", missing, 1);
    check(
        json!({"type": "BlockStored", "block_hashes": [1], "token_ids": [7], "block_size": 1,
            "num_block_tokens": "1"}),
        "num_block_tokens",
        kind,
        1,
    );
    let names = EVENT_BLOCKS_MAX + 1;
    check(json!(["BlockRemoved", vec![1; names]]), "block_hashes", Fault::TooMany, names);
}

#[test]
fn unknown_events_are_named() {
    let payload = pack(&json!([1, [
        ["Ignored", {"a": [1]}],
        {"type": "BlockMoved", "block_hashes": "whatever", "medium": 5},
        {"type": "BlockRemoved", "block_hashes": [1], "token_ids": "not looked at"},
        ["AllBlocksCleared"],
    ]]));
    let events = events(&payload, EngineKind::Vllm);
    assert_eq!(events[..2], [RawEvent::Unknown("Ignored"), RawEvent::Unknown("BlockMoved")]);
    assert!(matches!(&events[2], RawEvent::Removed(_)));
    assert_eq!(events[3], RawEvent::Cleared(Place::default()));
}

#[test]
fn depth_costs_nothing() {
    let depth = 1_000_000;
    let nested = "91".repeat(depth) + "c0";
    let payload =
        pack(&json!([1, [["BlockRemoved", [1], null, 0, null, 0, null, {"$raw": nested}]]]));
    assert!(matches!(&events(&payload, EngineKind::Vllm)[0], RawEvent::Removed(_)));
}

#[test]
fn clears_and_moves_state_their_media() {
    let payload = pack(&json!([1, [
        {"type": "TierBlocksCleared", "medium": "GPU"},
        ["AllBlocksCleared", "CPU"],
        {"type": "TierBlocksCleared"},
        ["BlockTransferred", [1, 2], "GPU", "CPU", 0],
        {"type": "BlockTransferred", "block_hashes": [3], "from_medium": "CPU", "to": "GPU"},
    ]]));
    let events = events(&payload, EngineKind::Vllm);
    let on = |medium| Place { medium: Some(medium), ..Place::default() };
    assert_eq!(events[..2], [RawEvent::Cleared(on("GPU")), RawEvent::Cleared(on("CPU"))]);
    let unreadable = Unreadable { field: "medium", fault: Fault::Missing, operations: 1 };
    assert_eq!(events[2], RawEvent::Unreadable(unreadable));
    let RawEvent::Moved(moved) = &events[3] else { panic!("{events:?}") };
    assert_eq!((&moved.names[..], moved.from), (&[BlockName(1), BlockName(2)][..], Some("GPU")));
    assert_eq!(moved.place, Place { group: Some(0), ..on("CPU") });
    let RawEvent::Moved(moved) = &events[4] else { panic!("{events:?}") };
    assert_eq!((moved.from, moved.place), (Some("CPU"), on("GPU")));
}

/// Frames of Mooncake's master 0.3.14 have object keys instead of hashes.
#[test]
fn objects_of_a_store_are_named_by_the_hash_in_their_keys() {
    let hash = "00112233445566778899aabbccddeeff00112233445566778899aabbccddee0f";
    let of = |kind: &str, object_key: &str| {
        let event = json!({"event_id": 1, "event_type": kind, "type": kind, "block_size": null,
            "medium": "cpu", "object_key": object_key, "seq_hashes": [], "block_hashes": [],
            "parent_hash": null, "token_ids": null, "parent_block_hash": null});
        let payload = pack(&json!([1_795_785_079_251_u64, [event], 0]));
        events(&payload, EngineKind::Vllm).into_iter().next().map(|event| match event {
            RawEvent::StoredObject(stored) => stored.names.first().map(|name| name.0),
            RawEvent::Removed(removed) => {
                assert_eq!(removed.remaining, Some(vec![0]), "the block is gone with one object");
                removed.names.first().map(|name| name.0)
            }
            _ => None,
        })
    };
    let name = Some(Some(0x8899_aabb_ccdd_ee0f));
    assert_eq!(of("BlockStored", &format!("model@tp_rank:0@{hash}")), name);
    assert_eq!(of("BlockRemoved", &format!("model@tp_rank:0@{hash}")), name);
    assert_eq!(of("BlockStored", "plain-key"), Some(None));
    for suffix in ["_k", "_0_k", "_0_v"] {
        assert_eq!(of("BlockStored", &format!("{hash}{suffix}")), name, "{suffix}");
        assert_eq!(of("BlockRemoved", &format!("{hash}{suffix}")), name, "{suffix}");
    }
}
