//! Soak test: a scripted engine at 10 times the capacity of host and disk. Meanwhile storages fail, and the process is
//! killed and restarted on the same disk. `KVASIR_SOAK_SECONDS=600` runs for ten minutes; `KVASIR_SEED=7` begins with
//! another seed.

use crate::audit::audit;
use crate::engine::{Done, Engine};
use crate::world::{Faults, Sizes, config, settle, storages};
use kvasir_blocks::BlockTier;
use kvasir_tiers::faults::{Plan, Rates};
use kvasir_tiers::manager::KvBlockManager;
use std::env;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use tokio::task::JoinSet;

pub(crate) const SIZES: Sizes = Sizes { device: 48, host: 32, disk: 64 };
const ENGINES: u64 = 4;
/// Names of the reported counts, in the order of the output.
const FIGURES: [&str; 9] = [
    "turns",
    "read",
    "computed",
    "given up",
    "moved",
    "corrupt",
    "unreadable",
    "faults",
    "restored",
];

fn number(name: &str) -> Option<u64> {
    env::var(name).ok()?.parse().ok()
}

fn faults(seed: u64, is_planted: bool) -> Faults {
    let delay_max = Duration::from_millis(5);
    let data = Rates { short: 20, end: 3, flip: 10, full: 5, io: 5, ..Rates::default() };
    let table = Rates { short: 20, full: 5, io: 5, ..Rates::default() };
    let host =
        Rates { flip: 10, full: 5, io: 5, delay: 20, cancel: 5, delay_max, ..Rates::default() };
    let transfers = Rates { full: 5, io: 5, delay: 20, cancel: 5, delay_max, ..Rates::default() };
    let of = |salt: u64, rates| Plan::new(seed.wrapping_mul(31).wrapping_add(salt), rates);
    Faults {
        host: of(1, host),
        disk: of(2, data),
        table: of(3, table),
        transfers: of(4, transfers),
        is_planted,
    }
}

/// One process run: works until it is killed, or for the given time and to an orderly end.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_scripted_engine() {
    let own = tempfile::tempdir().expect("a folder");
    let folder = env::var("KVASIR_SOAK_FOLDER").map_or(own.path().to_path_buf(), PathBuf::from);
    let seed = number("KVASIR_SOAK_LIFE").unwrap_or(1);
    let lasts = Duration::from_millis(number("KVASIR_SOAK_MILLIS").unwrap_or(2_000));
    let faults = faults(seed, env::var("KVASIR_SOAK_PLANTED").is_ok());
    let started =
        KvBlockManager::start(config(SIZES), &storages(SIZES, &folder.join("disk"), &faults));
    let manager = Arc::new(started.expect("a manager"));
    let feed = manager.events().expect("a feed");
    let done = Arc::new(Done::default());
    let is_over = Arc::new(AtomicBool::new(false));
    let mut engines = JoinSet::new();
    for at in 0..ENGINES {
        let manager = Arc::clone(&manager);
        let done = Arc::clone(&done);
        let folder = folder.clone();
        let is_over = Arc::clone(&is_over);
        let random = seed.wrapping_mul(0x9E37_79B9).wrapping_add(at);
        let mut engine = Engine { manager, done, folder, random };
        engines.spawn(async move { engine.work(|| is_over.load(Ordering::Relaxed)).await });
    }
    let figures = folder.join(format!("life-{seed}"));
    let end = tokio::time::Instant::now() + lasts;
    while tokio::time::Instant::now() < end {
        tokio::time::sleep(Duration::from_millis(20)).await;
        tell(&figures, &manager, &done, &faults);
    }
    is_over.store(true, Ordering::Relaxed);
    faults.all().iter().for_each(|plan| plan.end());
    while let Some(ended) = engines.join_next().await {
        ended.expect("an engine that ends well");
    }
    tell(&figures, &manager, &done, &faults);
    settle(&manager).await;
    let wrong = fs::read_to_string(folder.join("wrong")).unwrap_or_default();
    assert_eq!(wrong, "", "wrong bytes were read");
    audit(&manager, feed, &folder.join("disk")).await;
    fs::write(folder.join("audited"), "").expect("a file");
}

fn tell(figures: &Path, manager: &KvBlockManager, done: &Done, faults: &Faults) {
    let metrics = manager.metrics();
    let moved: u64 = metrics.blocks.lanes.values().map(|lane| lane.committed).sum();
    let injected: u64 = faults.all().iter().flat_map(|plan| plan.injected().into_values()).sum();
    let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    let all = [
        read(&done.turns),
        read(&done.blocks_read),
        read(&done.blocks_computed),
        read(&done.given_up),
        moved,
        BlockTier::ALL.iter().map(|tier| metrics.corrupt[tier]).sum(),
        metrics.transfers.unreadable,
        injected,
        metrics.transfers.restored,
    ];
    let line = all.map(|figure| figure.to_string()).join(" ");
    let new = figures.with_extension("new");
    let kinds = figures.with_extension("kinds");
    let by_kind: Vec<_> =
        faults.all().iter().map(|plan| format!("{:?}", plan.injected())).collect();
    fs::write(&new, line).and_then(|()| fs::rename(&new, figures)).expect("figures");
    fs::write(kinds, by_kind.join("\n")).expect("faults by kind");
}

fn begin(folder: &Path, life: u64, millis: u64, is_planted: bool) -> Child {
    let mut command = Command::new(env::current_exe().expect("this program"));
    command.args(["--exact", "soak::a_scripted_engine", "--nocapture"]);
    command.env("KVASIR_SOAK_FOLDER", folder).env("KVASIR_SOAK_LIFE", life.to_string());
    command.env("KVASIR_SOAK_MILLIS", millis.to_string());
    if is_planted {
        command.env("KVASIR_SOAK_PLANTED", "1");
    }
    // The test runner must not read the child's result as its own.
    let log = File::create(log_of(folder, life)).expect("a file");
    command.stdout(log.try_clone().expect("the same file")).stderr(log);
    command.spawn().expect("a process")
}

fn log_of(folder: &Path, life: u64) -> PathBuf {
    folder.join(format!("log-{life}"))
}

/// Process runs that are killed, then one that ends in order. Returns the counts of all.
fn soak(folder: &Path, seconds: u64, is_planted: bool) -> ([u64; FIGURES.len()], u64, bool) {
    let seed = number("KVASIR_SEED").unwrap_or(1_000);
    // A process run takes two to three seconds.
    let kills = (seconds * 2 / 5).max(2);
    let mut sums = [0; FIGURES.len()];
    let mut is_well = true;
    for at in 0..=kills {
        let is_last = at == kills;
        let millis = 2_000 + (seed + at) * 7_919 % 1_000;
        let mut child =
            begin(folder, seed + at, if is_last { millis } else { 600_000 }, is_planted);
        if !is_last {
            std::thread::sleep(Duration::from_millis(millis));
            child.kill().expect("SIGKILL");
        }
        let has_failed = !child.wait().expect("its end").success() && is_last;
        if has_failed && !is_planted {
            let log = fs::read_to_string(log_of(folder, seed + at)).unwrap_or_default();
            log.lines().for_each(|line| println!("| {line}"));
        }
        is_well &= !has_failed;
        let line =
            fs::read_to_string(folder.join(format!("life-{}", seed + at))).unwrap_or_default();
        for (sum, figure) in sums.iter_mut().zip(line.split(' ')) {
            *sum += figure.parse::<u64>().unwrap_or_default();
        }
    }
    (sums, kills, is_well)
}

#[test]
fn no_wrong_byte_is_served_while_storages_fail_and_the_process_is_killed() {
    let folder = tempfile::tempdir().expect("a folder");
    let seconds = number("KVASIR_SOAK_SECONDS").unwrap_or(180);
    let (sums, kills, is_well) = soak(folder.path(), seconds, false);
    let said: Vec<_> =
        FIGURES.iter().zip(sums).map(|(name, sum)| format!("{name} {sum}")).collect();
    println!("soak: {}, kills {kills}", said.join(", "));
    assert!(!folder.path().join("wrong").exists(), "wrong bytes were read");
    assert!(is_well && folder.path().join("audited").exists(), "the last life did not end well");
    assert!(sums.iter().all(|sum| *sum > 0), "something never happened: {said:?}");
}

#[test]
fn the_soak_notices_storages_that_do_not_check() {
    let folder = tempfile::tempdir().expect("a folder");
    let (_, _, is_well) = soak(folder.path(), 6, true);
    let noticed = folder.path().join("wrong").exists();
    assert!(noticed && !is_well, "flipped bits came through unnoticed");
}
