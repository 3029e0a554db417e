//! Kills a process at random moments while it stores images.

use crate::model::{Model, address, change, config, open, state};
use indexer_server::snapshot::{Change, SnapshotStore, StoreError, StreamPosition};
use kvasir_index::WorkerImage;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::io::{BufRead, BufReader, Read, Write, stdout};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::{env, hint};

const FOLDER: &str = "KVASIR_TEST_SNAPSHOT_FOLDER";
const ROUNDS: u64 = 30;
const WORKERS: u64 = 6;
/// Interval of states in which a worker does not exist.
const GONE_EVERY: u64 = 9;
/// Interval of states that are stored as complete images, in several parts.
const WHOLE_EVERY: u64 = 4;

/// State of a worker after this many changes. `None` if it does not exist.
fn model_at(worker: u64, number: u64) -> Option<Model> {
    if is_gone(worker, number) {
        return None;
    }
    let mut model = Model::default();
    let last_gone = (1..=number).rev().find(|at| is_gone(worker, *at)).unwrap_or(0);
    for number in last_gone + 1..=number {
        model.apply(&change(worker, number));
    }
    Some(model)
}

fn is_gone(worker: u64, number: u64) -> bool {
    worker == 0 && number.is_multiple_of(GONE_EVERY)
}

/// The child: resumes from the stored state, stores one state of every worker at a time, and prints the stored states.
/// Runs until it is killed.
fn store_for_ever(folder: &Path) {
    let mut store = open(folder);
    let stored = (0..WORKERS).filter_map(|worker| {
        Model::read(&store, &address(worker)).expect("readable").map(|model| model.number())
    });
    let first = stored.max().unwrap_or(0) + 1;
    let mut models: Vec<_> =
        (0..WORKERS).map(|worker| model_at(worker, first - 1).unwrap_or_default()).collect();
    for number in first.. {
        let images: Vec<_> = (0..WORKERS)
            .zip(&mut models)
            .map(|(worker, model)| next_image(&store, worker, number, model))
            .collect();
        let addresses: Vec<_> = (0..WORKERS).map(address).collect();
        let changes = addresses.iter().zip(&images).zip(&models);
        let changes: Vec<_> = changes
            .map(|((at, image), model)| match image {
                Some(image) => state(at, image, model),
                None => Change::Forget(at),
            })
            .collect();
        // Print in parts, so that a kill can fall between the parts.
        let mut out = stdout();
        let cut = (number % WORKERS) as usize;
        for (from, part) in [(0, &changes[..cut]), (cut as u64, &changes[cut..])] {
            store.write(part).expect("room");
            for worker in from..from + part.len() as u64 {
                writeln!(out, "stored {worker} {number}").expect("a reader");
            }
        }
        let cut_at = StreamPosition { stream_created_unix_ns: -7, sequence: number };
        store.set_stream_position(cut_at).expect("room");
        writeln!(out, "position {number}").expect("a reader");
        out.flush().expect("a reader");
        if number.is_multiple_of(16) {
            store.flush().expect("room");
        }
    }
}

fn next_image(
    store: &SnapshotStore,
    worker: u64,
    number: u64,
    model: &mut Model,
) -> Option<WorkerImage> {
    if is_gone(worker, number) {
        *model = Model::default();
        return None;
    }
    let image = change(worker, number);
    model.apply(&image);
    let whole =
        store.needs_whole(&address(worker)) || (number + worker).is_multiple_of(WHOLE_EVERY);
    Some(if whole { model.whole(&address(worker).worker) } else { image })
}

/// Starts this test as a separate process.
fn spawn(folder: &Path) -> Child {
    Command::new(env::current_exe().expect("this program"))
        .args(["--exact", "t20_kill::a_killed_process_leaves_each_worker_in_one_state"])
        .args(["--nocapture", "--test-threads=1"])
        .env(FOLDER, folder)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("a process")
}

/// The last states that a process reported as stored.
struct Acknowledged {
    /// State of each worker.
    workers: Vec<Option<u64>>,
    position: Option<u64>,
}

/// Kills a process after this many lines of output.
fn kill_after(mut child: Child, lines: usize, random: &mut ChaCha8Rng) -> Acknowledged {
    let mut output = BufReader::new(child.stdout.take().expect("a pipe")).lines();
    let mut last = Acknowledged { workers: vec![None; WORKERS as usize], position: None };
    let mut note = |line: String| {
        let after = |wanted| line.split(' ').skip_while(move |word| *word != wanted).skip(1);
        let mut numbers = after("stored").map_while(|word| word.parse::<u64>().ok());
        if let (Some(worker), Some(number)) = (numbers.next(), numbers.next()) {
            last.workers[worker as usize] = Some(number);
        }
        let position = after("position").map_while(|word| word.parse().ok()).next();
        last.position = position.or(last.position);
    };
    for _line in 0..lines {
        match output.next() {
            Some(line) => note(line.expect("UTF-8")),
            None => break,
        }
    }
    for _turn in 0..random.random_range(0..2_000_000) {
        hint::spin_loop();
    }
    child.kill().expect("a process that goes on");
    output.for_each(|line| note(line.expect("UTF-8")));
    let mut errors = String::new();
    child.stderr.take().expect("a pipe").read_to_string(&mut errors).expect("UTF-8");
    assert!(!errors.contains("panicked"), "{errors}");
    assert_eq!(child.wait().expect("an end").code(), None, "ended by itself: {errors}");
    last
}

#[test]
fn a_killed_process_leaves_each_worker_in_one_state() {
    if let Some(folder) = env::var_os(FOLDER) {
        return store_for_ever(Path::new(&folder));
    }
    let seed = 20;
    let random = &mut ChaCha8Rng::seed_from_u64(seed);
    let folder = tempfile::tempdir().expect("a folder");
    let mut stored = vec![0; WORKERS as usize];
    let mut position = 0;
    let mut behind = 0;
    let mut with = 0;
    let mut without = 0;
    for round in 0..ROUNDS {
        let lines = if round % 5 == 4 { 0 } else { random.random_range(1..80) };
        let first = stored.iter().max().map_or(1, |number| number + 1);
        let acknowledged = kill_after(spawn(folder.path()), lines, random);
        let store = open(folder.path());
        for worker in 0..WORKERS {
            let stated = acknowledged.workers[worker as usize];
            let last = stated.unwrap_or(stored[worker as usize]);
            let under_way = stated.map_or(first, |stated| stated + 1);
            let found = Model::read(&store, &address(worker)).expect("readable");
            let about = format!("seed {seed}, round {round}, worker {worker}, stored {last}");
            // The state in progress is either stored completely or not at all. Older and partial states are errors.
            let number = [last, under_way].into_iter().find(|number| match &found {
                Some(model) => model.number() == *number,
                None => *number == 0 || is_gone(worker, *number),
            });
            let Some(number) = number else {
                panic!("{about}: {:?} is there", found.map(|model| model.number()));
            };
            if number > 0 {
                assert_eq!(found, model_at(worker, number), "{about}, state {number}");
            }
            *if number == last { &mut without } else { &mut with } += 1;
            stored[worker as usize] = number;
        }
        // The position is either the last acknowledged one or the one in progress. All data that it covers must be
        // present.
        let found = store.stream_position().map_or(0, |found| found.sequence);
        let last = acknowledged.position.unwrap_or(position);
        let about = format!("seed {seed}, round {round}: {found}, acknowledged {last}");
        let under_way = acknowledged.position.map_or(first, |stated| stated + 1);
        assert!([last, under_way].contains(&found), "{about}, under way {under_way}");
        assert!(stored.iter().all(|number| *number >= found), "{about}: {stored:?}");
        behind += u64::from(stored.iter().any(|number| *number > found));
        position = found;
    }
    println!("{with} workers with what was under way, {without} without; states: {stored:?}");
    println!("the position lagged after {behind} of {ROUNDS} kills");
    assert!(stored.iter().all(|number| *number > ROUNDS), "{stored:?}");
    assert!(position > ROUNDS && behind > 0, "{position}");
}

#[test]
fn a_second_process_is_refused_until_the_first_ends() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut child = spawn(folder.path());
    let mut lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
    while !lines.next().expect("a line").expect("UTF-8").contains("stored") {}
    let error = SnapshotStore::open(&config(folder.path())).expect_err("in use");
    assert!(matches!(error, StoreError::Locked { .. }), "{error}");
    child.kill().expect("a process that goes on");
    child.wait().expect("an end");
    assert!(open(folder.path()).workers().count() > 0);
}
