//! Writes images and reads workers.

use crate::model::{Model, address, change, config, open, state};
use indexer_server::snapshot::{Change, FORMAT_VERSION, SnapshotConfig, SnapshotStore, StoreError};
use kvasir_index::WorkerImage;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::collections::BTreeMap;
use std::fs;
use std::time::Duration;
use tokio::time::Instant;

pub(crate) const WORKERS: u64 = 5;
/// Longest wait for RocksDB's threads.
const PATIENCE: Duration = Duration::from_secs(60);

/// Compares the complete store with the expected contents.
pub(crate) fn compare(store: &SnapshotStore, models: &BTreeMap<u64, Model>, about: &str) {
    let mut expected: Vec<_> = models.keys().map(|worker| address(*worker)).collect();
    expected.sort();
    assert!(store.workers().eq(&expected), "{about}");
    for (worker, model) in models {
        let found = Model::read(store, &address(*worker)).expect("readable");
        assert_eq!(found.as_ref(), Some(model), "{about}: worker {worker}");
    }
}

#[test]
fn what_was_stored_is_read_across_restarts() {
    for seed in 0..12 {
        let folder = tempfile::tempdir().expect("a folder");
        let random = &mut ChaCha8Rng::seed_from_u64(seed);
        let mut store = open(folder.path());
        let mut models: BTreeMap<u64, Model> = BTreeMap::new();
        for number in 1..=60 {
            let about = format!("seed {seed}, step {number}");
            match random.random_range(0..20) {
                0 => {
                    drop(store);
                    store = open(folder.path());
                }
                1 => store.flush().expect("a flush"),
                2 => store.compact().expect("a compaction"),
                3 => {
                    let gone = address(random.random_range(0..WORKERS));
                    store.write(&[Change::Forget(&gone)]).expect("room");
                    models.retain(|worker, _model| address(*worker) != gone);
                }
                _ => write_some(&mut store, &mut models, number, random),
            }
            compare(&store, &models, &about);
        }
        let figures = store.figures().expect("figures");
        assert_eq!(figures.workers, models.len());
        assert_eq!(figures.held_blocks, models.values().map(Model::blocks).sum::<u64>());
        assert!(figures.is_writable && figures.disk_bytes > 0, "{figures:?}");
    }
}

#[test]
fn tables_are_merged_once_that_is_begun() {
    let folder = tempfile::tempdir().expect("a folder");
    let config = SnapshotConfig { compacts: false, ..config(folder.path()) };
    let random = &mut ChaCha8Rng::seed_from_u64(7);
    let mut models: BTreeMap<u64, Model> = BTreeMap::new();
    let mut store = SnapshotStore::open(&config).expect("a store").store;
    for number in 1..=40 {
        write_some(&mut store, &mut models, number, random);
        store.flush().expect("a flush");
    }
    drop(store);
    let mut store = SnapshotStore::open(&config).expect("a store").store;
    let merged = |store: &SnapshotStore| store.figures().expect("figures").compacted_bytes;
    assert_eq!(merged(&store), 0);
    store.begin_compacting().expect("it is open");
    let begin = Instant::now();
    while merged(&store) == 0 {
        assert!(begin.elapsed() < PATIENCE, "no table is merged");
        std::thread::yield_now();
    }
    compare(&store, &models, "merged");
}

/// Stores one or several workers together, one of them perhaps twice. Images are complete where needed or by chance.
pub(crate) fn write_some(
    store: &mut SnapshotStore,
    models: &mut BTreeMap<u64, Model>,
    number: u64,
    random: &mut ChaCha8Rng,
) {
    let mut images: Vec<(u64, WorkerImage, Model)> = Vec::new();
    for _image in 0..random.random_range(1..4) {
        let worker = random.random_range(0..WORKERS);
        let fresh = !images.iter().any(|(at, _image, _model)| *at == worker);
        let model = models.entry(worker).or_default();
        let mut image = change(worker, number);
        model.apply(&image);
        if fresh && store.needs_whole(&address(worker)) || random.random_range(0..8) == 0 {
            image = model.whole(&address(worker).worker);
        }
        images.push((worker, image, model.clone()));
    }
    let addresses: Vec<_> = images.iter().map(|(worker, ..)| address(*worker)).collect();
    let changes = images.iter().zip(&addresses);
    let changes: Vec<_> =
        changes.map(|((_worker, image, model), at)| state(at, image, model)).collect();
    store.write(&changes).expect("room");
}

#[test]
fn changes_follow_whole_images_of_this_process_only() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut store = open(folder.path());
    let at = address(1);
    let image = change(1, 1);
    let mut model = Model::default();
    model.apply(&image);
    let whole = model.whole(&at.worker);
    let refused = |store: &mut SnapshotStore| {
        assert!(store.needs_whole(&at));
        // The valid change before it is stored.
        let other = address(2);
        let mut other_model = Model::default();
        other_model.apply(&change(2, 1));
        let other_image = other_model.whole(&other.worker);
        let changes = [state(&other, &other_image, &other_model), state(&at, &image, &model)];
        let refusal = store.write(&changes).expect_err("no base");
        assert_eq!(refusal.written, 1);
        assert_eq!(refusal.error, StoreError::NeedsWhole { worker: at.clone() });
        assert_eq!(Model::read(store, &other), Ok(Some(other_model)));
    };
    refused(&mut store);
    store.write(&[state(&at, &whole, &model)]).expect("room");
    assert!(!store.needs_whole(&at));
    store.write(&[state(&at, &image, &model)]).expect("room");
    drop(store);
    let mut store = open(folder.path());
    refused(&mut store);
    assert_eq!(Model::read(&store, &at), Ok(Some(model.clone())));
    store.write(&[Change::Forget(&at), Change::Forget(&address(77))]).expect("room");
    assert_eq!(Model::read(&store, &at), Ok(None));
    refused(&mut store);
}

#[test]
fn an_image_that_is_none_hurts_nobody_else() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut store = open(folder.path());
    let workers: Vec<_> = (0..3).map(address).collect();
    let mut models = vec![Model::default(); 3];
    let mut images = Vec::new();
    for (worker, model) in models.iter_mut().enumerate() {
        model.apply(&change(worker as u64, 3));
        images.push(model.whole(&workers[worker].worker));
    }
    // A run that belongs to another page.
    let pages = (1..).flat_map(|number| change(1, number).ranks).flat_map(|rank| rank.pages);
    let mut page = pages.into_iter().find(|page| !page.runs.is_empty()).expect("one with blocks");
    page.page += 1;
    images[1].ranks[0].pages.push(page);
    let changes: Vec<_> = (0..3).map(|at| state(&workers[at], &images[at], &models[at])).collect();
    let refusal = store.write(&changes).expect_err("not an image");
    assert_eq!(refusal.written, 1);
    let text = refusal.error.to_string();
    assert!(text.contains("worker-1") && text.contains("first"), "{text}");
    store.write(&changes[2..]).expect("room");
    assert_eq!(Model::read(&store, &workers[0]), Ok(Some(models[0].clone())));
    assert_eq!(Model::read(&store, &workers[1]), Ok(None));
    assert_eq!(Model::read(&store, &workers[2]), Ok(Some(models[2].clone())));
}

#[test]
fn many_small_workers_are_made_durable_together() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut store = open(folder.path());
    let workers: Vec<_> = (0..10_000).map(address).collect();
    let images: Vec<_> = (0..10_000)
        .map(|worker| {
            let mut image = change(worker, 1);
            image.ranks.clear();
            image.whole = true;
            image
        })
        .collect();
    let model = Model::default();
    let changes: Vec<_> =
        workers.iter().zip(&images).map(|(at, image)| state(at, image, &model)).collect();
    store.write(&changes).expect("room");
    let figures = store.figures().expect("figures");
    assert!(figures.log_syncs <= 4, "{figures:?}");
    assert_eq!(store.workers().count(), 10_000);
}

#[test]
fn a_folder_that_cannot_be_used_is_refused_with_the_fix() {
    let check = |folder: &std::path::Path, expected: &[&str]| {
        let error = SnapshotStore::open(&config(folder)).expect_err("refused");
        assert!(error.is_misconfigured(), "{error:?}");
        let text = error.to_string();
        for word in expected {
            assert!(text.contains(word), "{word}: {text}");
        }
    };
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().to_str().expect("UTF-8");

    // The database is in use: here by this process, in t20_kill by another one (the lock is the same).
    let store = open(folder.path());
    check(folder.path(), &[path, "another process", "a folder of its own"]);
    drop(store);

    // The database of another shard: its buckets may move, its number may not.
    let shards = tempfile::tempdir().expect("a folder");
    let started = |shard: Option<&str>| {
        let shard = shard.map(|place| place.parse().expect("a place"));
        SnapshotStore::open(&SnapshotConfig { shard, ..config(shards.path()) })
    };
    for start in 0..2 {
        assert!(started(Some("1/3")).is_ok(), "start {start}");
    }
    for (other, named) in [(None, "without --shard"), (Some("2/3"), "2/3"), (Some("1/4"), "1/4")] {
        let error = started(other).expect_err("another's");
        assert!(error.is_misconfigured(), "{error:?}");
        let text = error.to_string();
        assert!(text.contains("started with --shard 1/3") && text.contains(named), "{text}");
    }

    // A database in a future format.
    let database = rocksdb::DB::open_default(folder.path().join("db")).expect("a database");
    database.put([0], [8, 200, 1, 18, 3, b'9', b'.', b'0']).expect("room");
    drop(database);
    let supported = format!("reads format {FORMAT_VERSION}");
    check(folder.path(), &[path, "format 200", "version 9.0", &supported]);

    // A database of another program.
    let other = tempfile::tempdir().expect("a folder");
    let database = rocksdb::DB::open_default(other.path().join("db")).expect("a database");
    database.put(b"theirs", b"data").expect("room");
    drop(database);
    check(other.path(), &["no manifest", "choose a folder"]);

    // A file instead of a folder.
    let file = tempfile::NamedTempFile::new().expect("a file");
    check(file.path(), &["choose a folder"]);
    assert_eq!(fs::read(file.path()).expect("still there"), b"");
}
