//! Exports a complete store into another store.

use crate::model::{Model, address, bulk, change, open, state};
use crate::t10_store::{WORKERS, compare, write_some};
use indexer_server::snapshot::{
    Change, EXPORT_CHUNK_BYTES_MAX, FORMAT_VERSION, ImportError, SnapshotStore, StoreError,
    StreamPosition,
};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Read};
use std::path::Path;

const SEEDS: u64 = 6;
const DAMAGES: u64 = 240;
const PAGES: u32 = 100;
/// Number of pages for an export of several chunks.
const MANY_PAGES: u32 = 1_500;

fn position(sequence: u64) -> StreamPosition {
    StreamPosition { stream_created_unix_ns: i64::MAX, sequence }
}

fn export(store: &mut SnapshotStore) -> Vec<u8> {
    let mut export = store.export().expect("room");
    let mut bytes = Vec::new();
    while let Some(chunk) = export.next_chunk().expect("readable") {
        assert!(chunk.len() <= EXPORT_CHUNK_BYTES_MAX, "{}", chunk.len());
        bytes.extend(chunk);
    }
    bytes
}

/// A store with workers that have at least this many pages.
fn fill(folder: &Path, pages: u32) -> (SnapshotStore, BTreeMap<u64, Model>) {
    let mut store = open(folder);
    let mut models = BTreeMap::new();
    for worker in 0..WORKERS {
        let at = address(worker);
        let mut image = change(worker, 1);
        image.ranks[0].pages.extend(bulk(worker, pages));
        let mut model = Model::default();
        model.apply(&image);
        store.write(&[state(&at, &model.whole(&at.worker), &model)]).expect("room");
        models.insert(worker, model);
    }
    store.set_stream_position(position(1)).expect("room");
    (store, models)
}

#[test]
fn what_was_exported_is_imported_whatever_is_stored_meanwhile() {
    for seed in 0..SEEDS {
        let about = format!("seed {seed}");
        let folder = tempfile::tempdir();
        let other = tempfile::tempdir();
        let (folder, other) = (folder.expect("a folder"), other.expect("a folder"));
        let random = &mut ChaCha8Rng::seed_from_u64(seed);
        let (mut store, mut models) = fill(folder.path(), MANY_PAGES);
        for number in 2..20 {
            write_some(&mut store, &mut models, number, random);
            if random.random_range(0..10) == 0 {
                store.write(&[Change::Forget(&address(0))]).expect("room");
                models.remove(&0);
            }
        }
        store.set_stream_position(position(seed)).expect("room");

        let mut export = store.export().expect("room");
        let before = models.clone();
        let mut bytes = Vec::new();
        let mut number = 20;
        while let Some(chunk) = export.next_chunk().expect("readable") {
            bytes.extend(chunk);
            number += 1;
            write_some(&mut store, &mut models, number, random);
            store.set_stream_position(position(u64::MAX)).expect("room");
            store.compact().expect("room");
        }
        assert_eq!(export.workers(), before.len(), "{about}");
        assert_eq!(export.held_blocks(), before.values().map(Model::blocks).sum::<u64>());
        drop(export);
        assert!(number > 21, "{about}: one chunk");
        assert!(!folder.path().join("db.export").exists(), "{about}");
        compare(&store, &models, &about);

        let mut store = open(other.path());
        let imported = store.import(&*bytes).expect(&about);
        assert_eq!(imported.position, Some(position(seed)), "{about}");
        assert_eq!(imported.workers, before.len(), "{about}");
        for _start in 0..2 {
            compare(&store, &before, &about);
            assert_eq!(store.stream_position(), Some(position(seed)), "{about}");
            assert!(before.keys().all(|worker| store.needs_whole(&address(*worker))), "{about}");
            drop(store);
            store = open(other.path());
        }
        // The new store works like any other.
        let mut models = before;
        write_some(&mut store, &mut models, 99, random);
        compare(&store, &models, &about);
    }
}

/// Checks that the store is empty and usable.
fn check_empty(store: &mut SnapshotStore, about: &str) {
    assert_eq!((store.workers().count(), store.stream_position()), (0, None), "{about}");
    let found = Model::read(store, &address(1)).expect(about);
    assert_eq!(found, None, "{about}");
}

#[test]
fn damage_is_refused_and_leaves_nothing() {
    let folder = tempfile::tempdir();
    let other = tempfile::tempdir();
    let (folder, other) = (folder.expect("a folder"), other.expect("a folder"));
    let (mut source, models) = fill(folder.path(), PAGES);
    let bytes = export(&mut source);
    let mut store = open(other.path());
    for seed in 0..DAMAGES {
        let random = &mut ChaCha8Rng::seed_from_u64(seed);
        let mut damaged = bytes.clone();
        // The header, the records of workers, the contents of ranks, the trailer.
        let regions = [0..16, 0..4_096, 4_096..bytes.len(), bytes.len() - 64..bytes.len()];
        let at = random.random_range(regions[(seed % 4) as usize].clone());
        match random.random_range(0..4) {
            0 => damaged.truncate(at),
            1 => damaged.insert(at, random.random()),
            2 => drop(damaged.remove(at)),
            _ => damaged[at] ^= random.random_range(1..=u8::MAX),
        }
        if damaged == bytes {
            continue;
        }
        let about = format!("seed {seed}, at {at}");
        let error = store.import(&*damaged).expect_err(&about);
        let is_typed = matches!(error, ImportError::Damaged { .. } | ImportError::Version { .. });
        assert!(is_typed, "{about}: {error}");
        check_empty(&mut store, &about);
        if seed.is_multiple_of(50) {
            drop(store);
            store = open(other.path());
            check_empty(&mut store, &about);
        }
    }
    store.import(&*bytes).expect("as it was");
    compare(&store, &models, "as it was");
    let error = store.import(&*bytes).expect_err("not empty");
    assert!(matches!(error, ImportError::NotEmpty { .. }), "{error}");
    compare(&store, &models, "as it was");
}

#[test]
fn what_is_no_export_is_refused_with_the_reason() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut store = open(folder.path());
    let empty = export(&mut store);
    let mut refused = |bytes: &[u8], reason: &str| {
        let error = store.import(bytes).expect_err(reason).to_string();
        assert!(error.contains(reason), "{error}");
        check_empty(&mut store, reason);
    };
    refused(b"", "ends too early");
    refused(&[7; 64], "its header is wrong");
    let of_later = [&empty[..8], &(FORMAT_VERSION + 1).to_le_bytes(), &empty[12..]].concat();
    refused(&of_later, &format!("format {}", FORMAT_VERSION + 1));
    refused(&[&*empty, &[0]].concat(), "bytes follow its end");
    // Lengths above the limits.
    refused(&[&empty[..12], &[5], &u32::MAX.to_le_bytes()].concat(), "a value of 4294967295");
    refused(&[&empty[..12], &[255], &[0; 300]].concat(), "a key of 255");
    assert_eq!(store.import(&*empty).expect("an export").workers, 0);
    // A failing reader is not damage.
    let failing = empty[..13].chain(Failing);
    let error = store.import(failing).expect_err("it fails");
    assert!(matches!(error, ImportError::Read(_)), "{error}");
}

struct Failing;

impl Read for Failing {
    fn read(&mut self, _buffer: &mut [u8]) -> io::Result<usize> {
        Err(io::Error::other("gone"))
    }
}

/// Copies the database after this many bytes were read, as a kill at that moment would leave it.
struct Copying<'a> {
    bytes: &'a [u8],
    at: usize,
    from: &'a Path,
    to: &'a Path,
}

impl Read for Copying<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.bytes.len() <= self.at && !self.to.join("db").exists() {
            fs::create_dir_all(self.to.join("db"))?;
            for file in fs::read_dir(self.from.join("db"))? {
                let file = file?;
                fs::copy(file.path(), self.to.join("db").join(file.file_name()))?;
            }
        }
        self.bytes.read(buffer)
    }
}

#[test]
fn a_kill_in_the_middle_leaves_an_empty_store() {
    let folder = tempfile::tempdir().expect("a folder");
    let (mut source, models) = fill(folder.path(), PAGES);
    let bytes = export(&mut source);
    for part in 0..=8 {
        let about = format!("{part} of 8");
        let other = tempfile::tempdir();
        let killed = tempfile::tempdir();
        let other = other.expect("a folder");
        let killed = killed.expect("a folder");
        let mut store = open(other.path());
        let from = other.path();
        let to = killed.path();
        let at = bytes.len() * part / 8;
        store.import(Copying { bytes: &bytes, at, from, to }).expect(&about);
        compare(&store, &models, &about);
        let mut store = open(to);
        check_empty(&mut store, &about);
        store.import(&*bytes).expect(&about);
        compare(&store, &models, &about);
    }
}

#[test]
fn one_export_at_a_time_and_none_is_left_behind() {
    let folder = tempfile::tempdir().expect("a folder");
    let (mut store, _models) = fill(folder.path(), PAGES);
    let first = store.export().expect("room");
    let error = store.export().expect_err("under way");
    assert!(matches!(error, StoreError::Exporting { .. }), "{error}");
    drop(first);
    let bytes = export(&mut store);
    drop(store);
    // The remains of a process that was killed during an export.
    let view = folder.path().join("db.export");
    fs::create_dir(&view).expect("a folder");
    fs::write(view.join("left"), b"over").expect("a file");
    let mut store = open(folder.path());
    assert!(!view.exists());
    assert_eq!(export(&mut store), bytes);
}
