//! Tests the normalised golden frames, case by case. Local hashes are computed here with XXH3 itself.

use crate::expected::{field, name, names, operations, tokens};
use crate::frames::{Frame, frames};
use kvasir_engine::decode::{EngineKind, RawTokens, decode};
use kvasir_engine::normalise::{DropReason, Normalised, Normaliser, NormaliserConfig};
use kvasir_proto::hash::{leaf, stem, stem_name};
use kvasir_proto::types::{Group, GroupKind, KvEvent, LocalHash, StoredBlock, Tier};
use serde_json::Value;
use std::collections::{BTreeSet, HashMap};
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

const BLOCK_SIZE: u32 = 4;
const DEFAULT_RANK: u32 = 9;

fn normaliser(engine: EngineKind, block_size: u32, lora_names: &[(u64, &str)]) -> Normaliser {
    let named = lora_names.iter().map(|&(id, name)| (id, name.to_owned()));
    let lora_names: HashMap<u64, String> = named.collect();
    Normaliser::new(NormaliserConfig {
        default_rank: DEFAULT_RANK,
        lora_names: lora_names.into(),
        ..NormaliserConfig::new(engine, block_size)
    })
}

fn normalise(frame: &Frame) -> Normalised {
    let batch = decode(&frame.payload, frame.engine).expect("a batch");
    normaliser(frame.engine, BLOCK_SIZE, &[]).normalise(batch)
}

fn seed(lora_name: &str, salt: &str) -> u64 {
    let lora = if lora_name.is_empty() { 0 } else { xxh3_64(lora_name.as_bytes()) };
    let salt = if salt.is_empty() { 0 } else { xxh3_64_with_seed(salt.as_bytes(), 1) };
    1337_u64.wrapping_add(lora).wrapping_add(salt)
}

/// The expected stored event: tokens, extra bytes per block, and seed give the hashes.
fn stored(event: &Value, engine: EngineKind, tier: Tier, extra: &[&[u8]], seed: u64) -> KvEvent {
    let RawTokens::Ids(ids_le) = tokens(event) else { panic!("pairs") };
    let block_bytes = field(event, "block_size").as_u64().expect("block size") * 4;
    let blocks = ids_le.chunks(usize::try_from(block_bytes).expect("small"));
    let hash = |(index, block): (usize, &[u8])| {
        let extra = extra.get(index).copied().unwrap_or_default();
        LocalHash(xxh3_64_with_seed(&[block, extra].concat(), seed))
    };
    let names = names(event, engine).into_iter();
    let parent = field(event, "parent_block_hash");
    KvEvent::Stored {
        parent: (!parent.is_null()).then(|| name(parent, engine)),
        tier,
        blocks: names
            .zip(blocks.enumerate().map(hash))
            .map(|(name, local)| StoredBlock { name, local })
            .collect(),
    }
}

/// The expected result of a case.
enum Outcome {
    /// Every event is normalised, with its blocks in this tier and without adapter or salt.
    Plain(Tier),
    /// Every event is normalised to names without tokens.
    Names(Tier),
    /// The one event is of a further group, which is declared first.
    Further,
    /// The one event is dropped.
    Dropped(DropReason),
    /// The one event is normalised, with this multimodal content in its first block and this seed.
    Keyed(Vec<u8>, u64),
    /// The one event is normalised, each block as its content with the following token below.
    LookAhead,
    /// The one event is normalised, with hashes that queries cannot compute.
    Unmatchable,
}

fn outcome(frame: &Frame) -> Outcome {
    let event = &frame.decoded[1][0];
    let trtllm = frame.engine == EngineKind::Trtllm;
    // Keys omitted on another medium leave salts and images unknown.
    let is_vllm = frame.engine == EngineKind::Vllm;
    let lacks_keys = is_vllm && field(event, "extra_keys").is_null();
    match frame.case.as_str() {
        // The array form does not state the following tokens.
        "stored_lookahead" if !field(event, "lookahead_token_ids").is_null() => Outcome::LookAhead,
        "stored_lookahead" => Outcome::Plain(Tier::Device),
        "stored_cpu" if lacks_keys => Outcome::Names(Tier::Host),
        "stored_disk" if lacks_keys => Outcome::Names(Tier::Disk),
        "stored_cpu" | "removed_cpu" | "removed_cpu_local" => Outcome::Plain(Tier::Host),
        "stored_disk" => Outcome::Plain(Tier::Disk),
        "stored_cpu_placeholder" | "stored_mooncake_lower_cpu" => Outcome::Names(Tier::Host),
        "stored_storage_remote" | "stored_external" => Outcome::Dropped(DropReason::Remote),
        // Older releases do not state the kind of a group.
        "stored_swa_group_masked" if field(event, "kv_cache_spec_kind").is_null() => {
            Outcome::Dropped(DropReason::UnknownGroup)
        }
        "stored_swa_group_masked" => Outcome::Further,
        "removed_group1" => Outcome::Dropped(DropReason::OtherGroup),
        "stored_partial_block" | "stored_short_tail" | "stored_page1" => {
            Outcome::Dropped(DropReason::PartialBlock)
        }
        "stored_bigram" => Outcome::Dropped(DropReason::EaglePairs),
        "stored_lora" if field(event, "lora_name").is_null() => Outcome::Unmatchable,
        "stored_lora" | "stored_lora_name" => Outcome::Keyed(vec![], seed("sql-adapter", "")),
        "stored_salt" | "stored_salt_metadata" => Outcome::Keyed(vec![], seed("", "tenant-a")),
        "stored_mm" if trtllm => {
            Outcome::Keyed(72_623_859_790_382_856_u64.to_le_bytes().to_vec(), seed("", ""))
        }
        "stored_mm_salt" => {
            let hash = xxh3_64(b"mmhash0a1b").to_le_bytes().to_vec();
            Outcome::Keyed(hash, seed("", "tenant-salt"))
        }
        "stored_root"
        | "stored_child"
        | "stored_coalesced"
        | "stored_uint64_hash"
        | "stored_duplicate"
        | "stored_medium_null"
        | "stored_session"
        | "stored_dp1"
        | "stored_child_partial_tail"
        | "removed_gpu"
        | "removed_unknown"
        | "removed_with_partial"
        | "event_id_gap"
        | "batch_mixed"
        | "all_cleared"
        | "batch_clear_then_store" => Outcome::Plain(Tier::Device),
        other => panic!("no expectation for {other}"),
    }
}

fn plain(event: &Value, engine: EngineKind, tier: Tier) -> KvEvent {
    let tag = event.get(0).unwrap_or(&event["type"]);
    match tag.as_str().expect("a tag") {
        "BlockStored" => stored(event, engine, tier, &[], seed("", "")),
        "BlockRemoved" => KvEvent::Removed { tier, names: names(event, engine) },
        _ => KvEvent::Cleared,
    }
}

/// The events of a store in a sliding-window group: a declaration of the group, then the blocks.
fn further(event: &Value, engine: EngineKind) -> Vec<KvEvent> {
    let window = field(event, "kv_cache_spec_sliding_window").as_u64();
    let window = u32::try_from(window.expect("a window")).expect("of 32 bits");
    let group = Group {
        number: 1,
        kind: GroupKind::Window,
        block_size: BLOCK_SIZE,
        unit: BLOCK_SIZE,
        window,
    };
    let names = names(event, engine).into_iter();
    let blocks = names.map(|name| Group::block(1, name)).collect();
    let stored = |blocks| KvEvent::Stored { parent: None, tier: Tier::Device, blocks };
    vec![stored(vec![group.declaration()]), stored(blocks)]
}

#[test]
fn golden_frames_come_to_what_their_cases_say() {
    let mut cases = BTreeSet::new();
    for frame in frames() {
        let label = frame.label();
        let events = frame.decoded[1].as_array().expect("events");
        let out = normalise(&frame);
        let rank = frame.decoded.get(2).and_then(Value::as_u64).unwrap_or(DEFAULT_RANK.into());
        assert_eq!(u64::from(out.rank), rank, "{label}");
        assert_eq!((out.unreadable_events, out.first_unreadable), (0, None), "{label}");
        let mut dropped = None;
        let mut unmatchable = 0;
        let expected: Vec<KvEvent> = match outcome(&frame) {
            Outcome::Plain(tier) => {
                events.iter().map(|event| plain(event, frame.engine, tier)).collect()
            }
            Outcome::Names(tier) => {
                vec![KvEvent::StoredNames { tier, names: names(&events[0], frame.engine) }]
            }
            Outcome::Further => further(&events[0], frame.engine),
            Outcome::Dropped(reason) => {
                dropped = Some(reason);
                vec![]
            }
            Outcome::Keyed(extra, seed) => {
                let unsalted = plain(&events[0], frame.engine, Tier::Device);
                assert_no_block_alike(&unsalted, &out.events[0], &label);
                vec![stored(&events[0], frame.engine, Tier::Device, &[&extra], seed)]
            }
            Outcome::LookAhead => {
                let plain = plain(&events[0], frame.engine, Tier::Device);
                let KvEvent::Stored { parent, tier, blocks } = plain else { panic!("{label}") };
                let next = field(&events[0], "lookahead_token_ids");
                let next = next.as_array().expect("a list").iter().map(|of| of[0].as_u64());
                let positions = blocks.into_iter().zip(next).flat_map(|(block, next)| {
                    let next = u32::try_from(next.expect("a token")).expect("of 32 bits");
                    let name = stem_name(block.name);
                    [
                        StoredBlock { name, local: stem(block.local) },
                        StoredBlock { name: block.name, local: leaf(next) },
                    ]
                });
                vec![KvEvent::Stored { parent, tier, blocks: positions.collect() }]
            }
            Outcome::Unmatchable => {
                unmatchable = 1;
                for seed in [seed("", ""), seed("sql-adapter", ""), seed("7", "")] {
                    let named = stored(&events[0], frame.engine, Tier::Device, &[], seed);
                    assert_no_block_alike(&named, &out.events[0], &label);
                }
                out.events.clone()
            }
        };
        assert_eq!(out.events, expected, "{label}");
        assert_eq!(out.unmatchable_blocks, unmatchable, "{label}");
        let drops: Vec<_> = out.drops.iter().collect();
        assert_eq!(
            drops,
            dropped.map(|reason| (reason, 1)).into_iter().collect::<Vec<_>>(),
            "{label}"
        );
        cases.insert(frame.case);
    }
    assert_eq!(cases.len(), 37, "{cases:?}");
}

fn assert_no_block_alike(one: &KvEvent, other: &KvEvent, label: &str) {
    let (KvEvent::Stored { blocks: one, .. }, KvEvent::Stored { blocks: other, .. }) = (one, other)
    else {
        panic!("{label}: not both stored");
    };
    assert_eq!(one.len(), other.len(), "{label}");
    for (one, other) in one.iter().zip(other) {
        assert_ne!(one.local, other.local, "{label}");
    }
}

#[test]
fn numbered_adapters_take_their_name_from_the_registration() {
    let mut checked = 0;
    for frame in frames().iter().filter(|frame| frame.case == "stored_lora") {
        let batch = decode(&frame.payload, frame.engine).expect("a batch");
        let mut normaliser = normaliser(frame.engine, BLOCK_SIZE, &[(7, "sql-adapter")]);
        let event = &frame.decoded[1][0];
        let named = stored(event, frame.engine, Tier::Device, &[], seed("sql-adapter", ""));
        let out = normaliser.normalise(batch);
        assert_eq!((out.events, out.unmatchable_blocks), (vec![named], 0), "{}", frame.label());
        checked += 1;
    }
    assert_eq!(checked, 63);
}

#[test]
fn pages_of_one_token_are_blocks_where_agreed() {
    for frame in frames().iter().filter(|frame| frame.case == "stored_page1") {
        let batch = decode(&frame.payload, frame.engine).expect("a batch");
        let out = normaliser(frame.engine, 1, &[]).normalise(batch);
        let expected = stored(&frame.decoded[1][0], frame.engine, Tier::Device, &[], 1337);
        assert_eq!(out.events, [expected], "{}", frame.label());
    }
}

/// All frames of one publisher, in order, through one normaliser. State from one case must not lose
/// operations of another.
#[test]
fn whole_recordings_are_accounted_for() {
    let mut normalisers = HashMap::new();
    for frame in frames() {
        let key = (frame.version.clone(), frame.dp_rank, frame.hash_mode.clone(), frame.engine);
        let normaliser =
            normalisers.entry(key).or_insert_with(|| normaliser(frame.engine, BLOCK_SIZE, &[]));
        let received: usize = frame.decoded[1]
            .as_array()
            .expect("events")
            .iter()
            .map(|event| field(event, "block_hashes").as_array().map_or(1, Vec::len))
            .sum();
        let out = normaliser.normalise(decode(&frame.payload, frame.engine).expect("a batch"));
        let kept: usize = out.events.iter().map(operations).sum();
        let dropped = usize::try_from(out.drops.total()).expect("small");
        // For a source with look-ahead, each block is two positions.
        let most = if normaliser.learned().looks_ahead { 2 * received } else { received };
        assert!((received..=most).contains(&(kept + dropped)), "{}", frame.label());
    }
    assert_eq!(normalisers.len(), 78);
}
