use super::{
    Content, ContentKey, FormatError, ManifestRecord, PositionRecord, StreamPosition, WorkerHead,
    WorkerRecord, WorkerState, contents_bounds, decode_hole, decode_meaning, decode_name,
    decode_page, encode_hole, encode_meaning, encode_name, encode_page, generation_bounds,
};
use crate::partitions::RegisteredBy;
use kvasir_index::{
    HoleImage, NameImage, PAGE_SLOTS, PageImage, Position, RunImage, SourceId, SourceImage,
    WorkerImage,
};
use kvasir_proto::types::{
    AdapterNumber, BlockName, CopyMode, Cursor, Fingerprint, Group, GroupKind, ImageKeys,
    Incarnation, Learned, LocalHash, NameMeaning, PartitionKey, SourceState, SourceStatus,
    StoredBlock, Tier, TierSet, WorkerId,
};
use prost::Message;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::fmt::Debug;
use std::sync::Arc;

const SEEDS: u64 = 200;

fn random_run(random: &mut ChaCha8Rng, first: u32, len: usize) -> RunImage {
    let parent = match random.random_range(0..3) {
        0 => None,
        1 => first.checked_sub(1),
        _ => Some(random.random()),
    };
    let tiers: TierSet = Tier::ALL.into_iter().filter(|_tier| random.random()).collect();
    let tiers = if tiers.is_empty() { TierSet::ALL } else { tiers };
    let block =
        |_at| StoredBlock { name: BlockName(random.random()), local: LocalHash(random.random()) };
    let blocks = (0..len).map(block).collect();
    RunImage { first, parent, tiers, blocks }
}

fn random_page(random: &mut ChaCha8Rng) -> PageImage {
    let page = random.random_range(0..u32::MAX / PAGE_SLOTS);
    let mut runs = Vec::new();
    let mut at = 0;
    while at < PAGE_SLOTS {
        let first = random.random_range(at..PAGE_SLOTS);
        let len = random.random_range(1..=PAGE_SLOTS - first);
        runs.push(random_run(random, page * PAGE_SLOTS + first, len as usize));
        at = first + len;
    }
    PageImage { page, runs }
}

fn random_position(random: &mut ChaCha8Rng) -> Position {
    Position { slot: random.random(), parent: random.random::<bool>().then(|| random.random()) }
}

fn random_name(random: &mut ChaCha8Rng) -> NameImage {
    let mut copies = Vec::new();
    for source in 0..random.random_range(1..4) {
        let mut counts = [0; Tier::COUNT];
        counts[random.random_range(0..Tier::COUNT)] = random.random_range(1..9);
        counts[random.random_range(0..Tier::COUNT)] = u32::MAX;
        copies.push((SourceId(source), counts));
    }
    NameImage {
        name: BlockName(random.random()),
        parent: random.random::<bool>().then(|| BlockName(random.random())),
        local: random.random::<bool>().then(|| LocalHash(random.random())),
        position: random.random::<bool>().then(|| random_position(random)),
        copies,
    }
}

/// Decoding returns exactly the encoded value. It refuses truncated values and trailing bytes. A modified value is
/// refused, or decodes to a value that can be encoded again.
fn check<T: PartialEq + Debug>(
    seed: u64,
    value: &T,
    encode: impl Fn(&T, &mut Vec<u8>) -> Result<(), FormatError>,
    decode: impl Fn(&[u8]) -> Result<T, FormatError>,
) {
    let encoded = |value: &T| {
        let mut bytes = Vec::new();
        encode(value, &mut bytes).map(|()| bytes)
    };
    let bytes = encoded(value).expect("an image");
    assert_eq!(decode(&bytes).as_ref(), Ok(value), "seed {seed}");
    for len in 0..bytes.len() {
        assert!(decode(&bytes[..len]).is_err(), "seed {seed}: {len} of {} bytes", bytes.len());
    }
    let longer = [&*bytes, &[0]].concat();
    assert!(matches!(decode(&longer), Err(FormatError::Long { bytes: 1, .. })), "seed {seed}");
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    for _change in 0..64 {
        let mut changed = bytes.clone();
        let at = random.random_range(0..changed.len().min(40));
        changed[at] ^= random.random_range(1..=u8::MAX);
        if let Ok(other) = decode(&changed) {
            let again = encoded(&other).expect("what is read can be written");
            assert_eq!(decode(&again), Ok(other), "seed {seed}");
        }
    }
}

#[test]
fn contents_are_read_as_written_and_nothing_else_is() {
    for seed in 0..SEEDS {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let page = random_page(&mut random);
        check(seed, &page, encode_page, |bytes| decode_page(page.page, bytes));
        let name = random_name(&mut random);
        check(seed, &name, encode_name, |bytes| decode_name(name.name, bytes));
        let position = random_position(&mut random);
        let name = BlockName(random.random());
        let local = LocalHash(random.random());
        let hole = HoleImage { position, name, local };
        let encode = |hole: &HoleImage, bytes: &mut Vec<u8>| {
            encode_hole(hole, bytes);
            Ok(())
        };
        check(seed, &hole, encode, |bytes| decode_hole(position.slot, bytes));
    }
}

#[test]
fn pages_that_are_none_are_not_written() {
    let run = |first, len: usize| RunImage {
        first,
        parent: None,
        tiers: TierSet::ALL,
        blocks: vec![StoredBlock { name: BlockName(1), local: LocalHash(2) }; len],
    };
    let check = |page, runs: Vec<RunImage>, field: &str| {
        let error = encode_page(&PageImage { page, runs }, &mut Vec::new());
        let error = error.expect_err(field).to_string();
        assert!(error.contains(field), "{field}: {error}");
    };
    check(u32::MAX, vec![run(0, 1)], "page: page");
    check(1, Vec::new(), "runs");
    check(1, vec![run(63, 1)], "first");
    check(1, vec![run(128, 1)], "blocks");
    check(1, vec![run(64, 0)], "blocks");
    check(1, vec![run(64, 65)], "blocks");
    check(1, vec![run(64, 2), run(65, 1)], "first");
    check(1, vec![RunImage { tiers: TierSet::EMPTY, ..run(64, 1) }], "tiers");
    assert_eq!(
        encode_page(&PageImage { page: 1, runs: vec![run(64, 64)] }, &mut Vec::new()),
        Ok(())
    );
}

#[test]
fn names_without_copies_are_not_written() {
    let name = |copies| NameImage {
        name: BlockName(1),
        parent: None,
        local: None,
        position: None,
        copies,
    };
    for copies in [vec![], vec![(SourceId(1), [0; 3])], vec![(SourceId(1), [1; 3]); 256]] {
        assert!(encode_name(&name(copies), &mut Vec::new()).is_err());
    }
}

#[test]
fn keys_keep_to_the_bounds_of_their_worker_and_generation() {
    let numbers = [0, 1, 255, 256, u32::MAX - 1, u32::MAX];
    let mut keys = Vec::new();
    for worker in numbers {
        for generation in numbers {
            for rank in [0, u32::MAX] {
                for content in [
                    Content::Page(0),
                    Content::Page(u32::MAX),
                    Content::Name(BlockName(u64::MAX)),
                    Content::Hole(u32::MAX),
                ] {
                    keys.push(ContentKey { worker, generation, rank, content });
                }
            }
        }
    }
    let mut bytes = Vec::new();
    for key in &keys {
        key.encode(&mut bytes);
        assert_eq!(ContentKey::decode(&bytes), Ok(*key));
        assert!(ContentKey::decode(&bytes[..bytes.len() - 1]).is_err());
        assert!(ContentKey::decode(&[&*bytes, &[0]].concat()).is_err());
        let within = |(first, behind): (Vec<u8>, Vec<u8>)| first <= bytes && bytes < behind;
        assert!(within(contents_bounds(None)));
        for worker in numbers {
            assert_eq!(within(contents_bounds(Some(worker))), worker == key.worker, "{key:?}");
            for generation in numbers {
                let is_its = (worker, generation) == (key.worker, key.generation);
                assert_eq!(within(generation_bounds(worker, generation)), is_its, "{key:?}");
            }
        }
    }
}

fn learned() -> Learned {
    Learned {
        main_group: Some(0),
        states_keys: Some(false),
        looks_ahead: true,
        has_extra_keys: true,
        splits_chunks: true,
        image_keys: ImageKeys::Pairs,
        forgot_names: true,
        adapters: vec![AdapterNumber { rank: 3, adapter: 5, number: 6 }],
        groups: vec![Group {
            number: 1,
            kind: GroupKind::Window,
            block_size: 32,
            unit: 16,
            window: 128,
        }],
    }
}

#[test]
fn meanings_are_read_as_written() {
    let name = BlockName(9);
    for bits in 0..4_u8 {
        let meaning = NameMeaning {
            adapter: 1,
            seed: u64::MAX,
            matchable: bits & 1 != 0,
            has_own_keys: bits & 2 != 0,
            copies: [0, u32::MAX, 7],
        };
        let mut value = Vec::new();
        encode_meaning(name, &meaning, &mut value);
        assert_eq!(decode_meaning(name, &value), Ok(meaning));
        assert!(decode_meaning(BlockName(8), &value).is_err(), "of another name");
        let mut gone = Vec::new();
        encode_meaning(name, &NameMeaning { copies: [0; Tier::COUNT], ..meaning }, &mut gone);
        assert!(decode_meaning(name, &gone).is_err(), "no copies");
        assert!(decode_meaning(name, &value[1..]).is_err());
    }
}

fn image() -> WorkerImage {
    let status = SourceStatus {
        state: SourceState::Degraded,
        applied: Some(Cursor {
            incarnation: Incarnation(u128::MAX - 7),
            sequence: u64::MAX,
            fingerprint: Some(Fingerprint { ts_bits: 5, payload_hash: u64::MAX }),
        }),
        head: Some(0),
        learned: Arc::new(learned()),
        ..SourceStatus::default()
    };
    let source = SourceImage {
        id: SourceId(7),
        name: "s".into(),
        copy_mode: CopyMode::Set,
        status,
        incomplete: true,
        suspect: true,
        ranks: vec![0, 3],
    };
    let other = SourceImage {
        id: SourceId(8),
        name: "t".into(),
        copy_mode: CopyMode::Counted,
        status: SourceStatus::default(),
        ..source.clone()
    };
    let rank = |rank, primary| kvasir_index::RankImage {
        rank,
        primary,
        shed_blocks: 9,
        short: vec![SourceId(7)],
        pages: Vec::new(),
        names: Vec::new(),
        holes: Vec::new(),
        meanings: Vec::new(),
    };
    WorkerImage {
        worker: WorkerId::new("w").expect("a name"),
        whole: true,
        sources: vec![source, other],
        ranks: vec![rank(0, None), rank(3, Some(SourceId(7)))],
    }
}

#[test]
fn records_keep_sources_ranks_and_cursors() {
    let partition = PartitionKey::new("m", "t").expect("names");
    let image = image();
    let state = WorkerState {
        partition: &partition,
        image: &image,
        registration: b"opaque",
        registered_by: RegisteredBy::Request,
        held_blocks: 34,
    };
    let head = WorkerHead { generation: 5, images: 6, held_blocks: 34 };
    let bytes = WorkerRecord::of(&state, head).encode_to_vec();
    let record = WorkerRecord::read(&bytes).expect("a record");
    assert_eq!(record.head(), head);
    let worker = record.into_worker(b"opaque".to_vec()).expect("a worker");
    assert_eq!((worker.sources, worker.ranks), (image.sources.clone(), image.ranks.clone()));
    assert_eq!((worker.registration, worker.held_blocks), (b"opaque".to_vec(), 34));
    assert_eq!(worker.registered_by, RegisteredBy::Request);
    assert_eq!(worker.address.to_string(), "w (model m, tenant t)");

    // Older servers did not record who registered the worker, and values of newer servers are unknown.
    assert_eq!(bytes.split_last_chunk(), Some((&bytes[..bytes.len() - 2], &[0x48, 2])));
    for says in [&[][..], &[0x48, 99]] {
        let record = [&bytes[..bytes.len() - 2], says].concat();
        let record = WorkerRecord::read(&record).expect("a record");
        let worker = record.into_worker(Vec::new()).expect("a worker");
        assert_eq!(worker.registered_by, RegisteredBy::Unknown);
    }

    // A modified record is refused or read as another worker, without a panic.
    for seed in 0..SEEDS * 10 {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let mut changed = bytes.clone();
        let at = random.random_range(0..changed.len());
        changed[at] ^= random.random_range(1..=u8::MAX);
        if let Ok(record) = WorkerRecord::read(&changed) {
            drop(record.into_worker(Vec::new()));
        }
    }
    // An empty value is not a worker, a manifest or a position.
    assert!(WorkerRecord::read(&[]).expect("no fields").address().is_err());
    assert!(ManifestRecord::read(&[]).is_err());
    assert!(PositionRecord::read(&[]).is_err());
}

#[test]
fn positions_are_read_as_written() {
    for (stream_created_unix_ns, sequence) in [(0, 0), (i64::MIN, u64::MAX), (1, 2)] {
        let position = StreamPosition { stream_created_unix_ns, sequence };
        let bytes = PositionRecord::from(position).encode_to_vec();
        assert_eq!(PositionRecord::read(&bytes), Ok(position));
        // A position requires both fields.
        assert!(PositionRecord::read(&bytes[..9]).is_err());
        assert!(PositionRecord::read(&bytes[9..]).is_err());
    }
}
