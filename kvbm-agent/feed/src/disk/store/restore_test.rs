//! Tests writing and restoring over a map in place of RocksDB.

use super::format::{
    Target, batch_key, begin_incarnation, chunk_key, chunk_value, put_batch, put_image,
    put_manifest, put_meanings, put_source, remove_meanings,
};
use super::records::{ImageRecord, ManifestRecord};
use super::restore::{Found, FoundIncarnation, Origin, Show, read_journal};
use crate::disk::{
    DiskConfig, Flaws, NamesChange, NewIncarnation, PersistedNames, PersistedSource, SourceKind,
};
use crate::journal::{DumpStep, Journal, JournalConfig};
use kvasir_proto::convert::WorkerAddress;
use kvasir_proto::types::{
    BlockName, CopyMode, Cursor, DpRank, Fingerprint, HeldBlock, Incarnation, KvEvent, Learned,
    LocalHash, NameChange, NameMeaning, PartitionKey, StoredBlock, Tier, WorkerId,
};
use kvasir_store::Bounds;
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;

const INCARNATION: Incarnation = Incarnation(7);
const FIRST: u64 = 3;

#[derive(Default, Clone)]
struct Map(BTreeMap<Vec<u8>, Vec<u8>>);

impl Target for Map {
    fn put(&mut self, key: &[u8], value: &[u8]) {
        self.0.insert(key.to_vec(), value.to_vec());
    }

    fn remove(&mut self, key: &[u8]) {
        self.0.remove(key);
    }

    fn remove_range(&mut self, (first, behind): Bounds) {
        self.0.retain(|key, _| *key < first || *key >= behind);
    }
}

impl Origin for Map {
    type Error = Infallible;

    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, Infallible> {
        Ok(self.0.get(key).cloned())
    }

    fn each(
        &self,
        (first, behind): Bounds,
        show: &mut Show<'_>,
    ) -> Result<Result<(), NewIncarnation>, Infallible> {
        let mut values = self.0.range(first..behind);
        Ok(values.try_for_each(|(key, value)| show(key, value)))
    }
}

fn disk() -> DiskConfig {
    let partition = PartitionKey::new("m", "").expect("a name");
    let address = WorkerAddress { partition, worker: WorkerId::new("w").expect("a name") };
    DiskConfig {
        folder: "unused".into(),
        address,
        block_size: 4,
        lora_names: BTreeMap::new(),
        is_consolidated: false,
    }
}

fn config(copy_mode: CopyMode) -> JournalConfig {
    // Less than the 36 possible names.
    JournalConfig { copy_mode, batches_max: 6, held_blocks_max: 16, ..JournalConfig::DEFAULT }
}

/// A journal, and its state on disk.
struct Written {
    journal: Journal,
    map: Map,
    image: Option<ImageRecord>,
}

impl Written {
    fn new(copy_mode: CopyMode) -> Self {
        let mut map = Map::default();
        let disk = disk();
        put_manifest(&ManifestRecord::new(&disk, copy_mode), &mut map);
        begin_incarnation(INCARNATION, FIRST, &mut map);
        Self { journal: Journal::new(INCARNATION, FIRST, config(copy_mode)), map, image: None }
    }

    fn say(&mut self, rank: DpRank, events: Vec<KvEvent>) {
        let map = &mut self.map;
        let mut scratch = Vec::new();
        let appended = self.journal.append_each(rank, events, |batch| {
            put_batch(batch, &mut scratch, map);
        });
        appended.expect("a small batch");
    }

    /// Writes the chunks of an image. It does not count yet.
    fn image(&mut self) -> ImageRecord {
        let generation = self.image.map_or(0, |image| image.generation + 1);
        let mut image = ImageRecord { generation, ..ImageRecord::default() };
        let mut put = |rank, records: Vec<HeldBlock>, is_incomplete: bool| {
            if records.is_empty() != is_incomplete {
                return;
            }
            let value = chunk_value(rank, records);
            image.bytes += value.len() as u64;
            self.map.put(&chunk_key(generation, image.chunks), &value);
            image.chunks += 1;
        };
        let dump = self.journal.begin_dump(None).expect("no other");
        let cut = loop {
            match self.journal.step_dump(dump, 2).expect("nothing is cut off") {
                DumpStep::Records { rank, records } => put(rank, records, false),
                DumpStep::Cut(cut) => break cut,
            }
        };
        cut.records.into_iter().for_each(|(rank, records)| put(rank, records, false));
        cut.incomplete.into_iter().for_each(|rank| put(rank, Vec::new(), true));
        ImageRecord { watermark: cut.watermark, ..image }
    }

    fn count(&mut self, image: ImageRecord) {
        let before = self.image.map(|before| before.generation);
        let after = image.watermark.map_or(0, |watermark| watermark + 1);
        let retain_from = self.journal.oldest().unwrap_or(0).min(after);
        put_image(image, before, retain_from, &mut self.map);
        self.image = Some(image);
    }

    fn read(&self) -> Found {
        let Ok(found) = read_journal(&self.map, &disk(), config(self.journal.status().copy_mode));
        found
    }

    fn life(&self) -> Box<FoundIncarnation> {
        match self.read() {
            Found::Incarnation(found) => found,
            Found::Unusable(why) => panic!("{why}"),
            Found::Nothing | Found::OtherWorker(_) => panic!("it is there, and ours"),
        }
    }

    fn damage(&self) -> String {
        match self.read() {
            Found::Unusable(why) => why.to_string(),
            Found::Incarnation(_) | Found::Nothing | Found::OtherWorker(_) => {
                panic!("it is damaged")
            }
        }
    }
}

/// Held blocks, and the ranks whose list is incomplete.
type Contents = (BTreeMap<(DpRank, u64), HeldBlock>, Vec<DpRank>);

fn contents(journal: &mut Journal) -> Contents {
    let dump = journal.begin_dump(None).expect("no other");
    let mut all = BTreeMap::new();
    loop {
        match journal.step_dump(dump, 100).expect("nothing is cut off") {
            DumpStep::Records { rank, records } => {
                all.extend(records.into_iter().map(|held| ((rank, held.name.0), held)));
            }
            DumpStep::Cut(cut) => {
                assert!(cut.records.is_empty());
                return (all, cut.incomplete);
            }
        }
    }
}

fn block(name: u64) -> StoredBlock {
    StoredBlock { name: BlockName(name), local: LocalHash(name + 100) }
}

fn event() -> impl Strategy<Value = KvEvent> {
    let tier = prop_oneof![Just(Tier::Device), Just(Tier::Host)];
    let names = prop::collection::vec(0..12_u64, 1..4);
    (0..12_u32, tier, names, prop::option::of(0..12_u64)).prop_map(|(kind, tier, names, parent)| {
        let parent = parent.map(BlockName);
        let blocks = names.iter().copied().map(block).collect();
        let names = names.into_iter().map(BlockName).collect();
        match kind {
            0..=5 => KvEvent::Stored { parent, tier, blocks },
            6 => KvEvent::StoredNames { tier, names },
            7 => KvEvent::Gone { tier, names },
            8..=10 => KvEvent::Removed { tier, names },
            _ => KvEvent::Cleared,
        }
    })
}

/// Includes a rank without any other blocks.
#[test]
fn ranks_of_which_blocks_are_missing_come_back_so() {
    let mut written = Written::new(CopyMode::Set);
    for (rank, names) in [(0, 0..16), (1, 20..21), (2, 30..31)] {
        let blocks = names.map(block).collect();
        written.say(rank, vec![KvEvent::Stored { parent: None, tier: Tier::Device, blocks }]);
    }
    let image = written.image();
    written.count(image);
    for (rank, missing) in [(0, vec![1, 2]), (1, vec![2]), (2, vec![])] {
        written.say(rank, vec![KvEvent::Cleared]);
        assert_eq!(contents(&mut written.life().journal).1, missing);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Cut off anywhere, even within an image: the restored journal equals the original, and continues like it.
    #[test]
    fn what_comes_back_is_what_was_published(
        is_counted: bool,
        batches in prop::collection::vec((0..3_u32, prop::collection::vec(event(), 0..4), 0..6_u32), 1..40),
    ) {
        let copy_mode = if is_counted { CopyMode::Counted } else { CopyMode::Set };
        let mut written = Written::new(copy_mode);
        for (rank, events, image) in batches {
            written.say(rank, events);
            if image == 0 {
                let image = written.image();
                // The new image's chunks are written, but the previous image counts.
                prop_assert_eq!(written.life().image, written.image);
                written.count(image);
            }
            let mut found = written.life();
            let was = written.journal.status();
            let is = found.journal.status();
            prop_assert_eq!((is.incarnation, is.first, is.head), (INCARNATION, FIRST, was.head));
            prop_assert_eq!(is.own_first, was.head.map_or(FIRST, |head| head + 1));
            prop_assert_eq!(contents(&mut found.journal), contents(&mut written.journal));
            let digest = |journal: &Journal| journal.digest();
            prop_assert_eq!(digest(&found.journal), digest(&written.journal));
            // Readers receive the same batches from both.
            prop_assert!(is.oldest <= was.oldest || is.batches == 6);
            let from = was.oldest.unwrap_or(FIRST).max(is.oldest.unwrap_or(FIRST));
            prop_assert_eq!(from, was.oldest.unwrap_or(FIRST));
            let asked = |journal: &Journal| journal.range(INCARNATION, from..=u64::MAX, 100);
            prop_assert_eq!(asked(&found.journal), asked(&written.journal));
            found.journal.append(0, vec![KvEvent::Cleared]).expect("a next number");
            prop_assert_eq!(found.journal.head(), Some(is.own_first));
        }
    }
}

fn four_blocks() -> Written {
    let mut written = Written::new(CopyMode::Set);
    for name in 0..4 {
        let blocks = vec![block(name)];
        written.say(0, vec![KvEvent::Stored { parent: None, tier: Tier::Device, blocks }]);
    }
    written
}

#[test]
fn whatever_is_missing_is_noticed() {
    let mut written = four_blocks();
    let image = written.image();
    written.count(image);
    written.say(0, vec![KvEvent::Removed { tier: Tier::Device, names: vec![BlockName(0)] }]);
    let whole = written.map.clone();
    let without = |key: &[u8]| {
        let mut map = whole.clone();
        map.0.remove(key).expect("it was there");
        Written { map, ..four_blocks() }.damage()
    };
    let missing = |number| format!("the journal on disk is damaged: batch {number} is missing");
    assert_eq!(without(&batch_key(FIRST + 1)), missing(FIRST + 1));
    assert_eq!(without(&batch_key(FIRST + 3)), missing(FIRST + 3));
    assert!(without(&chunk_key(0, 0)).contains("parts of the image are missing"));
    assert!(without(b"l").contains("there is no incarnation"));
    let mut map = whole.clone();
    map.remove_range((batch_key(0).to_vec(), vec![b'b' + 1]));
    assert!(Written { map, ..four_blocks() }.damage().contains("the newest batches are missing"));
    for key in [&b"l"[..], b"i", b"m", &batch_key(FIRST), &chunk_key(0, 0)] {
        let mut map = whole.clone();
        map.0.get_mut(key).expect("it is there").fill(0xff);
        assert!(Written { map, ..four_blocks() }.damage().contains("damaged"), "{key:?}");
    }
}

#[test]
fn what_was_written_otherwise_is_not_gone_on_from() {
    let written = four_blocks();
    let read = |disk: &DiskConfig, copy_mode| {
        let Ok(found) = read_journal(&written.map, disk, config(copy_mode));
        found
    };
    let why = |found| match found {
        Found::Unusable(why) => why.to_string(),
        Found::Incarnation(_) | Found::Nothing | Found::OtherWorker(_) => panic!("it is another's"),
    };
    let size = DiskConfig { block_size: 16, ..disk() };
    assert_eq!(why(read(&size, CopyMode::Set)), "blocks of 4 tokens are on disk");
    let counted = why(read(&disk(), CopyMode::Counted));
    assert_eq!(counted, "copies are counted otherwise on disk");
    let lora_names = BTreeMap::from([(7, "sql".to_owned())]);
    let named = why(read(&DiskConfig { lora_names, ..disk() }, CopyMode::Set));
    assert_eq!(named, "LoRA adapters have other names on disk");
    let mut other = disk();
    other.address.worker = WorkerId::new("v").expect("a name");
    let Found::OtherWorker(found) = read(&other, CopyMode::Set) else { panic!("another's") };
    assert_eq!(found, disk().address);
    let manifest = ManifestRecord::new(&disk(), CopyMode::Set);
    let mut newer = four_blocks();
    put_manifest(&ManifestRecord { format_version: 4, ..manifest }, &mut newer.map);
    assert_eq!(newer.damage(), "format 4 is on disk, another version's");
}

#[test]
fn sources_come_back_as_they_stood() {
    let mut written = four_blocks();
    let fingerprint = Some(Fingerprint { ts_bits: 1, payload_hash: 2 });
    let relay = PersistedSource {
        name: "tcp://a:1".to_owned(),
        kind: SourceKind::Relay,
        copy_mode: CopyMode::Set,
        cursor: Cursor { incarnation: Incarnation(9), sequence: 5, fingerprint },
        flaws: Flaws { has_lost: true, lacks_blocks: true },
        past: vec![Incarnation(1), Incarnation(u128::MAX)],
        learned: Arc::new(Learned {
            main_group: Some(1),
            states_keys: Some(true),
            has_extra_keys: true,
            ..Learned::default()
        }),
        ranks: vec![0, 3],
    };
    let cursor = Cursor { fingerprint: None, ..relay.cursor };
    let kind = SourceKind::Ingest;
    let ingest = PersistedSource {
        name: "b".to_owned(),
        kind,
        cursor,
        flaws: Flaws::default(),
        ..relay.clone()
    };
    for source in [&relay, &ingest] {
        put_source(source, &mut Vec::new(), &mut written.map);
    }
    assert_eq!(written.life().sources.positions, [ingest, relay]);
    begin_incarnation(Incarnation(8), 0, &mut written.map);
    let found = written.life();
    assert_eq!((found.sources.positions.len(), found.journal.status().held_blocks), (0, 0));
    assert_eq!(found.journal.incarnation(), Incarnation(8));
}

#[test]
fn meanings_come_back_as_they_stood() {
    let mut written = four_blocks();
    let meaning = |seed| NameMeaning {
        adapter: 1,
        seed,
        matchable: true,
        has_own_keys: false,
        copies: [1, 0, 2],
    };
    let change = |rank, name, meaning| NameChange { rank, name: BlockName(name), meaning };
    let put = |written: &mut Written, source, changes: &[NameChange]| {
        put_meanings(&NamesChange { source, changes }, &mut written.map);
    };
    // One source name is a prefix of the other, and one block name is the largest possible.
    let all = [
        change(0, 5, Some(meaning(5))),
        change(3, u64::MAX, Some(meaning(6))),
        change(0, 7, Some(meaning(7))),
        change(0, 5, None),
        change(u32::MAX, 9, Some(meaning(9))),
    ];
    put(&mut written, "tcp://a", &all);
    put(&mut written, "tcp://a:1", &[change(0, 5, Some(meaning(8)))]);
    let of_a = PersistedNames {
        source: "tcp://a".to_owned(),
        names: vec![
            (0, BlockName(7), meaning(7)),
            (3, BlockName(u64::MAX), meaning(6)),
            (u32::MAX, BlockName(9), meaning(9)),
        ],
    };
    let of_other = PersistedNames {
        source: "tcp://a:1".to_owned(),
        names: vec![(0, BlockName(5), meaning(8))],
    };
    assert_eq!(written.life().sources.names, [of_a, of_other.clone()]);
    remove_meanings("tcp://a", &mut written.map);
    assert_eq!(written.life().sources.names, [of_other]);
    begin_incarnation(Incarnation(8), 0, &mut written.map);
    assert_eq!(written.life().sources.names, []);
}
