//! Files that were modified outside of the store.

use crate::model::{Model, address, bulk, change, config, open, state};
use indexer_server::snapshot::{SET_ASIDE_MAX, SnapshotStore, StoreError};
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::fs;
use std::path::{Path, PathBuf};

const WORKERS: u64 = 4;
const STATES: u64 = 24;
const SEEDS: u64 = 160;

/// Stores all states of all workers: most of them in tables, the last ones only in the log.
fn fill(folder: &Path) -> Vec<Vec<Model>> {
    let mut store = open(folder);
    let mut states = vec![vec![Model::default()]; WORKERS as usize];
    for number in 1..=STATES {
        for worker in 0..WORKERS {
            let at = address(worker);
            let states = &mut states[worker as usize];
            let mut model = states[states.len() - 1].clone();
            let mut changed = change(worker, number);
            if number == 1 {
                changed.ranks[0].pages.extend(bulk(worker, 100));
            }
            model.apply(&changed);
            let whole = store.needs_whole(&at);
            let image = if whole { model.whole(&at.worker) } else { changed };
            store.write(&[state(&at, &image, &model)]).expect("room");
            states.push(model);
        }
        if number == STATES / 2 {
            store.compact().expect("a compaction");
        } else if number.is_multiple_of(8) && number < STATES {
            store.flush().expect("a flush");
        }
    }
    states
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).expect("a folder");
    let mut files: Vec<_> = entries.map(|entry| entry.expect("an entry").path()).collect();
    files.sort();
    files
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("a folder");
    for file in files(from) {
        fs::copy(&file, to.join(file.file_name().expect("a name"))).expect("a copy");
    }
}

/// Damages one file of a database. Returns a description of the damage.
fn damage(database: &Path, random: &mut ChaCha8Rng) -> String {
    let mut files = files(database);
    files.retain(|file| fs::metadata(file).expect("a file").len() > 0 && !file.ends_with("LOG"));
    let file = files.choose(random).expect("files");
    let mut bytes = fs::read(file).expect("readable");
    let at = random.random_range(0..bytes.len());
    let name = file.file_name().expect("a name").to_string_lossy().into_owned();
    match random.random_range(0..8) {
        0 => {
            fs::remove_file(file).expect("removable");
            return format!("{name} removed");
        }
        1 => {
            bytes.truncate(at);
            fs::write(file, bytes).expect("writable");
            return format!("{name} cut at {at}");
        }
        _ => {}
    }
    let len = random.random_range(1..8).min(bytes.len() - at);
    for byte in &mut bytes[at..at + len] {
        *byte ^= random.random_range(1..=u8::MAX);
    }
    fs::write(file, bytes).expect("writable");
    format!("{name} changed at {at}")
}

/// Checks that each worker is read as one of its stored states, or is refused as damaged.
fn check_reads(store: &SnapshotStore, states: &[Vec<Model>], about: &str) -> bool {
    let mut is_good = true;
    for address in store.workers().cloned().collect::<Vec<_>>() {
        let worker = (0..WORKERS).find(|worker| crate::model::address(*worker) == address);
        let worker = worker.unwrap_or_else(|| panic!("{about}: {address} is there"));
        match Model::read(store, &address) {
            Ok(found) => {
                let found = found.expect("stored");
                let expected = &states[worker as usize][found.number() as usize];
                assert!(found == *expected, "{about}: {address} in a state that it never had");
            }
            Err(StoreError::Corrupt { .. }) => is_good = false,
            Err(error) => panic!("{about}: {error}"),
        }
    }
    is_good
}

/// Stores a complete worker and reads it.
fn check_use(store: &mut SnapshotStore, states: &[Vec<Model>], about: &str) {
    let at = address(1);
    let model = &states[1][3];
    let image = model.whole(&at.worker);
    store.write(&[state(&at, &image, model)]).expect(about);
    store.compact().expect(about);
    assert_eq!(Model::read(store, &at), Ok(Some(model.clone())), "{about}");
}

#[test]
fn damage_is_found_and_moved_aside_never_believed() {
    let base = tempfile::tempdir().expect("a folder");
    let states = fill(base.path());
    let mut opened = 0;
    let mut unread = 0;
    let mut refused = 0;
    for seed in 0..SEEDS {
        let folder = tempfile::tempdir().expect("a folder");
        let database = folder.path().join("db");
        copy(&base.path().join("db"), &database);
        let random = &mut ChaCha8Rng::seed_from_u64(seed);
        let about = format!("seed {seed}, {}", damage(&database, random));
        let mut config = config(folder.path());
        config.set_aside = false;
        match SnapshotStore::open(&config) {
            Ok(found) => {
                let mut store = found.store;
                if check_reads(&store, &states, &about) {
                    opened += 1;
                } else {
                    unread += 1;
                    let reason = StoreError::NeedsWhole { worker: address(1) };
                    let aside = store.set_aside(reason).expect(&about);
                    assert!(aside.folder.join("CURRENT").exists(), "{about}");
                    assert_eq!(store.workers().count(), 0, "{about}");
                    check_use(&mut store, &states, &about);
                }
            }
            Err(error @ StoreError::Corrupt { .. }) => {
                refused += 1;
                let text = error.to_string();
                assert!(text.contains("/db: damaged: move it away"), "{about}: {text}");
                let before = files(&database).len();
                config.set_aside = true;
                let mut found = SnapshotStore::open(&config).expect(&about);
                let aside = found.set_aside.expect(&about);
                assert!(aside.folder.ends_with("db.corrupt-1"), "{aside:?}");
                assert!(files(&aside.folder).len() >= before.min(3), "{about}");
                check_use(&mut found.store, &states, &about);
            }
            Err(error) => panic!("{about}: {error}"),
        }
    }
    println!("{opened} harmless or older, {unread} found on reading, {refused} found on opening");
    assert!(opened > 20 && unread > 2 && refused > 20);
}

#[test]
fn damaged_databases_pile_up_to_a_limit() {
    let folder = tempfile::tempdir().expect("a folder");
    let config = config(folder.path());
    for number in 1..=SET_ASIDE_MAX + 1 {
        drop(fs::remove_file(folder.path().join("db/CURRENT")));
        fs::create_dir_all(folder.path().join("db")).expect("a folder");
        fs::write(folder.path().join("db/000004.log"), b"lost").expect("writable");
        let opened = SnapshotStore::open(&config);
        if number <= SET_ASIDE_MAX {
            let aside = opened.expect("a new one").set_aside.expect("damage");
            let kept = fs::read(aside.folder.join("000004.log")).expect("kept");
            assert_eq!(kept, b"lost");
        } else {
            let error = opened.expect_err("too many");
            assert!(matches!(error, StoreError::CorruptAgain { .. }), "{error}");
            assert!(!error.is_misconfigured());
        }
    }
}

/// RocksDB reads its log up to the first damage. A separate file records the number of later writes.
#[test]
fn what_a_damaged_log_has_lost_is_told() {
    let base = tempfile::tempdir().expect("a folder");
    fill(base.path());
    let lost = |damaged: bool| {
        let folder = tempfile::tempdir().expect("a folder");
        let database = folder.path().join("db");
        copy(&base.path().join("db"), &database);
        let is_log = |file: &PathBuf| file.extension().is_some_and(|end| end == "log");
        let log = files(&database).into_iter().rfind(is_log).expect("a log");
        let mut bytes = fs::read(&log).expect("readable");
        let middle = bytes.len() / 2;
        bytes[middle] ^= u8::from(damaged);
        fs::write(log, bytes).expect("writable");
        let opened = SnapshotStore::open(&config(folder.path())).expect("an older state");
        assert_eq!(opened.set_aside, None);
        opened.lost_writes
    };
    assert_eq!(lost(false), 0);
    let writes = lost(true);
    assert!((1..STATES * WORKERS).contains(&writes), "{writes}");
}
