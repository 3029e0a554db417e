use super::*;
use kvasir_engine::decode::{EngineKind, decode};
use kvasir_engine::normalise::{Normaliser, NormaliserConfig};
use kvasir_feed::journal::{Journal, JournalConfig};
use kvasir_proto::types::{DpRank, LocalHash};
use proptest::collection::vec;
use proptest::prelude::*;
use std::collections::BTreeSet;
use std::sync::Arc;

const INCARNATION: Incarnation = Incarnation(7);
const BLOCK_SIZE: u32 = 16;

fn batch(rank: DpRank, events: Vec<KvEvent>) -> Arc<Batch> {
    let mut journal = Journal::new(INCARNATION, 0, JournalConfig::DEFAULT);
    journal.append(rank, events).expect("within limits");
    journal.range(INCARNATION, 0..=0, 1).expect("kept").batches.remove(0)
}

fn encoded(incarnation: Incarnation, batch: &Batch) -> Vec<u8> {
    Encoder::new(incarnation, BLOCK_SIZE).encode(batch)
}

fn normalised(payload: &[u8], engine: EngineKind) -> (DpRank, Vec<KvEvent>, u64) {
    let config = NormaliserConfig { default_rank: 9, ..NormaliserConfig::new(engine, BLOCK_SIZE) };
    let out = Normaliser::new(config).normalise(decode(payload, engine).expect("a batch"));
    (out.rank, out.events, out.drops.total())
}

fn tier() -> impl Strategy<Value = Tier> {
    (0..Tier::COUNT).prop_map(|at| Tier::ALL[at])
}

fn names() -> impl Strategy<Value = Vec<BlockName>> {
    vec(any::<u64>().prop_map(BlockName), 1..40)
}

fn event() -> impl Strategy<Value = KvEvent> {
    let block = any::<(u64, u64)>()
        .prop_map(|(name, local)| StoredBlock { name: BlockName(name), local: LocalHash(local) });
    let parent = any::<Option<u64>>().prop_map(|parent| parent.map(BlockName));
    prop_oneof![
        (parent, tier(), vec(block, 1..40)).prop_map(|(parent, tier, blocks)| KvEvent::Stored {
            parent,
            tier,
            blocks
        }),
        (tier(), names()).prop_map(|(tier, names)| KvEvent::StoredNames { tier, names }),
        (tier(), names()).prop_map(|(tier, names)| KvEvent::Removed { tier, names }),
        (tier(), names()).prop_map(|(tier, names)| KvEvent::Gone { tier, names }),
        Just(KvEvent::Cleared),
    ]
}

proptest! {
    /// A reader that is configured for a custom engine understands all events.
    #[test]
    fn what_is_written_is_what_is_read(rank in any::<u32>(), events in vec(event(), 0..20)) {
        let payload = encoded(INCARNATION, &batch(rank, events.clone()));
        prop_assert_eq!(normalised(&payload, EngineKind::Custom), (rank, events, 0));
    }
}

/// Byte for byte, so that every change is noticed.
#[test]
fn a_store_is_a_map_as_vllm_writes_it() {
    let block = StoredBlock { name: BlockName(5), local: LocalHash(6) };
    let event =
        KvEvent::Stored { parent: Some(BlockName(4)), tier: Tier::Disk, blocks: vec![block] };
    let payload = encoded(INCARNATION, &batch(3, vec![event]));
    let mut expected = vec![0x93, 0xcb];
    expected.extend_from_slice(&Encoder::new(INCARNATION, BLOCK_SIZE).stamp.to_be_bytes());
    expected.extend_from_slice(&[0x91, 0x89]);
    let entries: [(&str, &[u8]); 9] = [
        ("type", b"\xabBlockStored"),
        ("block_hashes", &[0x91, 5]),
        ("parent_block_hash", &[4]),
        ("token_ids", &[0x90]),
        ("block_size", &[16]),
        ("lora_id", &[0xc0]),
        ("medium", b"\xa7STORAGE"),
        ("lora_name", &[0xc0]),
        ("local_hashes", &[0x91, 6]),
    ];
    for (key, value) in entries {
        expected.push(0xa0 | u8::try_from(key.len()).expect("short"));
        expected.extend_from_slice(key.as_bytes());
        expected.extend_from_slice(value);
    }
    expected.push(3);
    assert_eq!(payload, expected);
}

/// A reader for other engines sees names without tokens, and never confuses blocks.
#[test]
fn others_see_names_without_tokens() {
    let block = StoredBlock { name: BlockName(5), local: LocalHash(6) };
    let stored = KvEvent::Stored { parent: None, tier: Tier::Host, blocks: vec![block] };
    let payload = encoded(INCARNATION, &batch(0, vec![stored]));
    let names = KvEvent::StoredNames { tier: Tier::Host, names: vec![BlockName(5)] };
    for engine in [EngineKind::Vllm, EngineKind::Sglang, EngineKind::Trtllm] {
        assert_eq!(normalised(&payload, engine), (0, vec![names.clone()], 0));
    }
}

/// The payload of a batch differs between incarnations, and is the same within one.
#[test]
fn stamps_tell_incarnations_apart() {
    let batch = batch(0, vec![KvEvent::Cleared]);
    assert_eq!(encoded(INCARNATION, &batch), encoded(INCARNATION, &batch));
    let payloads: BTreeSet<_> =
        (0..1_000).map(|incarnation| encoded(Incarnation(incarnation), &batch)).collect();
    assert_eq!(payloads.len(), 1_000);
}
