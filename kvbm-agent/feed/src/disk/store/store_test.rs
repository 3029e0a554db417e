//! Tests with RocksDB, in a folder.

use super::folder;
use super::open::open;
use crate::disk::{
    DiskConfig, DiskError, Flaws, NewIncarnation, Opened, PersistedSource, SourceChange,
    SourceKind, Verdict,
};
use crate::feed::{Feed, SourceConfig, write_images};
use crate::journal::{DumpStep, JournalConfig};
use kvasir_proto::convert::WorkerAddress;
use kvasir_proto::types::{
    BlockName, CopyMode, Cursor, Incarnation, KvEvent, Learned, LocalHash, PartitionKey,
    StoredBlock, Tier, WorkerId,
};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio_util::sync::CancellationToken;

const INCARNATION: Incarnation = Incarnation(7);
const FRESH: Incarnation = Incarnation(8);

fn journal() -> JournalConfig {
    JournalConfig { copy_mode: CopyMode::Set, bytes_max: 1 << 14, ..JournalConfig::DEFAULT }
}

fn disk(folder: &Path) -> DiskConfig {
    let partition = PartitionKey::new("m", "").expect("a name");
    let address = WorkerAddress { partition, worker: WorkerId::new("w").expect("a name") };
    DiskConfig {
        folder: folder.to_owned(),
        address,
        block_size: 4,
        lora_names: BTreeMap::new(),
        is_consolidated: false,
    }
}

fn opened(folder: &Path, life: Incarnation) -> Opened {
    open(&disk(folder), journal(), (life, 0)).expect("a folder of its own")
}

fn feed(folder: &Path, life: Incarnation) -> (Feed, Vec<PersistedSource>) {
    let config = SourceConfig {
        address: disk(folder).address,
        name: "agent".to_owned(),
        block_size: 4,
        incarnation: life,
        first_sequence: 0,
        journal: journal(),
    };
    let (feed, sources) = Feed::open(config, Some(opened(folder, life))).expect("a valid source");
    (feed, sources.positions)
}

fn source(sequence: u64) -> PersistedSource {
    PersistedSource {
        name: "engine".to_owned(),
        kind: SourceKind::Ingest,
        copy_mode: CopyMode::Set,
        cursor: Cursor { incarnation: Incarnation(3), sequence, fingerprint: None },
        flaws: Flaws::default(),
        past: Vec::new(),
        learned: Arc::new(Learned { main_group: Some(1), ..Learned::default() }),
        ranks: vec![0],
    }
}

/// Stores ten blocks, and removes ten earlier ones.
fn say(feed: &Feed, number: u64) {
    let block = |name| StoredBlock { name: BlockName(name), local: LocalHash(name) };
    let blocks = (10 * number..10 * number + 10).map(block).collect();
    let stored = KvEvent::Stored { parent: None, tier: Tier::Device, blocks };
    let gone = number.saturating_sub(30);
    let names = (10 * gone..10 * gone + 10).map(BlockName).collect();
    let removed = KvEvent::Removed { tier: Tier::Device, names };
    let events = if number > 30 { vec![stored, removed] } else { vec![stored] };
    feed.publish_all(0, events, SourceChange::Put(&source(number))).expect("a batch");
}

fn held(feed: &Feed) -> Vec<u64> {
    let mut names = Vec::new();
    feed.with_journal(|journal| {
        let dump = journal.begin_dump(None).expect("no other");
        while let Ok(DumpStep::Records { records, .. }) = journal.step_dump(dump, 1_000) {
            names.extend(records.into_iter().map(|held| held.name.0));
        }
    });
    names.sort_unstable();
    names
}

/// Why the journal in a folder is not resumed.
fn why(folder: &Path) -> String {
    let opened = opened(folder, FRESH);
    opened.restored.expect_err("it does not count").to_string()
}

#[test]
fn a_folder_is_one_agents() {
    let folder = tempfile::tempdir().expect("a folder");
    let first = opened(folder.path(), INCARNATION);
    assert_eq!(first.restored.expect_err("nothing is there"), NewIncarnation::First);
    let second = open(&disk(folder.path()), journal(), (FRESH, 0)).expect_err("in use");
    assert!(matches!(second, DiskError::Locked { .. }) && second.is_misconfigured(), "{second}");
    drop(first.disk);
    let mut other = disk(folder.path());
    other.address.worker = WorkerId::new("v").expect("a name");
    let refused = open(&other, journal(), (FRESH, 0)).expect_err("another worker's");
    assert!(refused.is_misconfigured(), "{refused}");
    assert!(refused.to_string().contains("choose another folder"), "{refused}");
    assert!(opened(folder.path(), FRESH).restored.is_ok(), "it is unharmed");

    let foreign = tempfile::tempdir().expect("a folder");
    fs::write(foreign.path().join("notes.txt"), "mine").expect("room");
    let refused =
        open(&disk(foreign.path()), journal(), (INCARNATION, 0)).expect_err("not a journal");
    assert!(refused.to_string().contains("notes.txt is there"), "{refused}");
    assert!(foreign.path().join("notes.txt").exists());
}

#[tokio::test]
async fn what_was_published_comes_back_with_images_and_without() {
    for images in [0, 3] {
        let folder = tempfile::tempdir().expect("a folder");
        let (feed, kept) = feed(folder.path(), INCARNATION);
        assert!(kept.is_empty() && feed.is_settled());
        let feed = Arc::new(feed);
        let stop = CancellationToken::new();
        let keeping = async {
            if images > 0 {
                write_images(Arc::clone(&feed), stop.clone()).await;
            }
        };
        let mut number = 0;
        let saying = async {
            let status = || feed.disk().expect("it is on disk").status();
            while status().images < images || number < 100 {
                say(&feed, number);
                number += 1;
                tokio::task::yield_now().await;
            }
            stop.cancel();
        };
        tokio::join!(keeping, saying);
        let expected = held(&feed);
        let head = feed.status().head;
        let status = feed.disk().expect("it is on disk").status();
        assert_eq!((status.error, status.images >= images), (None, true));
        drop(feed);
        let (again, kept) = self::feed(folder.path(), FRESH);
        assert_eq!((held(&again), again.status().head), (expected, head));
        assert_eq!(again.status().incarnation, INCARNATION);
        assert_eq!(kept, [source(number - 1)]);
        assert!(!again.is_settled());
        let restored = again.disk().expect("it is on disk").status();
        assert_eq!(restored.verdict, Verdict::Pending);
        assert!(restored.restored_blocks > 0 && restored.restored_batches > 0);
        if images > 0 {
            assert!(restored.restored_batches < number, "batches before an image go");
        }
    }
}

/// The database's log file, which has all writes.
fn log(folder: &Path) -> PathBuf {
    let files = fs::read_dir(folder::database(folder)).expect("a folder");
    let paths = files.map(|file| file.expect("a file").path());
    let is_log = |path: &PathBuf| path.extension().is_some_and(|name| name == "log");
    paths
        .filter(is_log)
        .max_by_key(|path| fs::metadata(path).map_or(0, |file| file.len()))
        .expect("a log")
}

fn write_journal(folder: &Path) {
    let (feed, _) = feed(folder, INCARNATION);
    for number in 0..20 {
        say(&feed, number);
    }
}

#[test]
fn a_log_that_is_not_whole_is_not_gone_on_from() {
    let torn = |bytes: &mut Vec<u8>| bytes.truncate(bytes.len() - 5);
    let flipped = |bytes: &mut Vec<u8>| {
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
    };
    for damage in [&torn as &dyn Fn(&mut Vec<u8>), &flipped as &dyn Fn(&mut Vec<u8>)] {
        let folder = tempfile::tempdir().expect("a folder");
        write_journal(folder.path());
        let path = log(folder.path());
        let mut bytes = fs::read(&path).expect("a log");
        damage(&mut bytes);
        fs::write(&path, bytes).expect("room");
        assert!(why(folder.path()).contains("damaged"));
        let (feed, _) = feed(folder.path(), Incarnation(9));
        assert_eq!(feed.status().incarnation, FRESH, "it was begun anew");
    }
}

#[test]
fn a_folder_that_was_given_up_begins_a_new_incarnation() {
    let folder = tempfile::tempdir().expect("a folder");
    let (feed, _) = feed(folder.path(), INCARNATION);
    say(&feed, 0);
    let disk = feed.disk().expect("it is on disk");
    disk.give_up("the disk is full");
    say(&feed, 1);
    assert_eq!(feed.status().head, Some(1), "it goes on in memory");
    assert_eq!(disk.status().error.as_deref(), Some("the disk is full"));
    drop(feed);
    assert_eq!(why(folder.path()), "a write had failed, or a start was cut off");
    assert!(opened(folder.path(), INCARNATION).restored.is_ok(), "from then on it counts again");

    fs::remove_file(folder::database(folder.path()).join("CURRENT")).expect("it is there");
    assert!(why(folder.path()).contains("there is no database"));
}

/// The folder counts although it is behind the stream. Therefore the incarnation ends, and held blocks are published
/// again.
#[test]
fn a_folder_that_cannot_be_given_up_ends_the_incarnation() {
    let folder = tempfile::tempdir().expect("a folder");
    let (feed, _) = feed(folder.path(), INCARNATION);
    say(&feed, 0);
    let held = feed.status().held_blocks;
    // A directory cannot be removed as a file.
    let mark = folder.path().join("counts");
    fs::remove_file(&mark).expect("it is there");
    fs::create_dir(&mark).expect("room");
    feed.disk().expect("it is on disk").give_up("the disk is gone");
    assert_eq!(feed.status().incarnation, INCARNATION);
    say(&feed, 1);
    let status = feed.status();
    assert_ne!(status.incarnation, INCARNATION);
    assert!(status.held_blocks >= held && status.first > 0, "{status:?}");
    let after = status.incarnation;
    say(&feed, 2);
    assert_eq!(feed.status().incarnation, after, "once");
}
