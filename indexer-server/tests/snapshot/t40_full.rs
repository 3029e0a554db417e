//! A full disk, simulated by a limit on file sizes, which needs no privileges.

use crate::model::{Model, address, change, config, open, state};
use indexer_server::snapshot::{SnapshotStore, StoreError};
use std::env;
use std::path::Path;
use std::process::{Command, Output};

const FOLDER: &str = "KVASIR_TEST_FULL_FOLDER";
const WORKERS: u64 = 6;
/// Maximum file size, in blocks of 512 bytes.
const FILE_BLOCKS: u32 = 512;
/// Number of rounds after the first failure.
const ROUNDS_AFTER: usize = 12;

/// The child: stores until that fails, and some rounds more.
fn store_until_full(folder: &Path) {
    let mut store = open(folder);
    let mut models = vec![Model::default(); WORKERS as usize];
    let mut failures = 0;
    let mut successes_after = 0;
    let mut rounds_after = 0;
    let mut stored = models.clone();
    for number in 1.. {
        for worker in 0..WORKERS {
            let at = address(worker);
            let image = change(worker, number);
            let model = &mut models[worker as usize];
            model.apply(&image);
            // Like a server: the next image includes the changes that were not stored. Here it is complete.
            let whole = model.whole(&at.worker);
            match store.write(&[state(&at, &whole, model)]) {
                Ok(()) => {
                    stored[worker as usize] = model.clone();
                    successes_after += usize::from(failures > 0);
                }
                Err(failure) => {
                    assert_eq!(failure.written, 0);
                    let error = failure.error;
                    assert!(matches!(error, StoreError::DiskFull { .. }), "{error:?}");
                    let text = error.to_string();
                    assert!(text.contains("the last checkpoint is unharmed"), "{text}");
                    failures += 1;
                }
            }
            // Failed changes may be stored or not. Successful changes must be stored.
            let found = Model::read(&store, &at).expect("readable");
            let [now, before] = [&models, &stored].map(|of| Some(of[worker as usize].clone()));
            assert!(found == now || found == before || before == Some(Model::default()));
        }
        rounds_after += usize::from(failures > 0);
        if rounds_after > ROUNDS_AFTER {
            let numbers: Vec<_> = stored.iter().map(Model::number).collect();
            println!("{failures} failures, {successes_after} successes after, at {numbers:?}");
            return;
        }
        assert!(number < 10_000, "the disk is never full");
    }
}

/// Runs one of these tests as a separate process with a limit on file sizes.
fn limited(file_blocks: u32, test: &str, folder: &Path) -> Output {
    Command::new("sh")
        .args(["-c", &format!("trap '' XFSZ; ulimit -f {file_blocks}; exec \"$0\" \"$@\"")])
        .arg(env::current_exe().expect("this program"))
        .args(["--exact", &format!("t40_full::{test}"), "--nocapture"])
        .env(FOLDER, folder)
        .output()
        .expect("a shell")
}

#[test]
fn a_full_disk_harms_nothing_that_was_stored() {
    if let Some(folder) = env::var_os(FOLDER) {
        return store_until_full(Path::new(&folder));
    }
    let folder = tempfile::tempdir().expect("a folder");
    let output = limited(FILE_BLOCKS, "a_full_disk_harms_nothing_that_was_stored", folder.path());
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    let (_, figures) = text.split_once(" failures, ").expect("failures");
    println!("{text}");
    let numbers = figures.split_once("at [").expect("states").1.split(']').next().expect("states");
    let numbers: Vec<u64> =
        numbers.split(", ").map(|number| number.parse().expect("a number")).collect();

    // With free space again, all stored states or later ones are present.
    let mut store = open(folder.path());
    for worker in 0..WORKERS {
        let found = Model::read(&store, &address(worker)).expect("readable").expect("stored");
        assert!(found.number() >= numbers[worker as usize]);
        let mut expected = Model::default();
        (1..=found.number()).for_each(|number| expected.apply(&change(worker, number)));
        assert_eq!(found, expected, "worker {worker}");
        let image = expected.whole(&address(worker).worker);
        store.write(&[state(&address(worker), &image, &expected)]).expect("room");
    }
    store.compact().expect("room");
    drop(SnapshotStore::open(&config(folder.path())).expect_err("it is open"));
}

/// The child: every write fails.
fn read_only(folder: &Path) {
    let opened = SnapshotStore::open(&config(folder)).expect("readable");
    assert!(matches!(opened.read_only, Some(StoreError::DiskFull { .. })), "{opened:?}");
    let mut store = opened.store;
    let mut model = Model::default();
    model.apply(&change(1, 1));
    let image = model.whole(&address(1).worker);
    for _attempt in 0..2 {
        assert_eq!(Model::read(&store, &address(1)), Ok(Some(model.clone())));
        assert_eq!(store.workers().count(), 1);
        let failure = store.write(&[state(&address(1), &image, &model)]).expect_err("no room");
        assert!(matches!(failure.error, StoreError::DiskFull { .. }), "{failure:?}");
        assert!(!store.figures().expect("figures").is_writable);
    }
}

#[test]
fn a_start_on_a_full_disk_reads_what_was_stored() {
    if let Some(folder) = env::var_os(FOLDER) {
        return read_only(Path::new(&folder));
    }
    let folder = tempfile::tempdir().expect("a folder");
    let mut store = open(folder.path());
    let mut model = Model::default();
    model.apply(&change(1, 1));
    let image = model.whole(&address(1).worker);
    store.write(&[state(&address(1), &image, &model)]).expect("room");
    drop(store);
    let output = limited(0, "a_start_on_a_full_disk_reads_what_was_stored", folder.path());
    let text = [output.stdout, output.stderr].concat();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&text));
    assert_eq!(Model::read(&open(folder.path()), &address(1)), Ok(Some(model)));
}
