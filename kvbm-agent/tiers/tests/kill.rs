//! Kills a process that writes a disk tier with SIGKILL, repeatedly. Every block reported as stored exists, and every
//! existing block is correct.
#![expect(clippy::expect_used, reason = "a test fails by panicking")]

use kvasir_memory::{Arena, SlotLayout, StorageAllocator, SystemAllocator};
use kvasir_tiers::disk::{DiskConfig, Opened};
use kvasir_tiers::{
    Cancel, DiskError, DiskStorage, Fingerprint, Identity, NewBlock, Place, Storage,
};
use std::collections::BTreeMap;
use std::env;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use tokio::time::Instant;

const BYTES: usize = 64 << 10;
const SLOTS: u32 = 32;
const ROUNDS: u32 = 20;
/// Environment variable with the child's folder. Only child processes have it.
const FOLDER: &str = "KVASIR_KILL_FOLDER";
const FIRST: &str = "KVASIR_KILL_FIRST";

fn config(folder: &Path, block_bytes: usize, slots: u32) -> DiskConfig {
    DiskConfig {
        path: folder.join("tier"),
        block_bytes,
        slots,
        fingerprint: Fingerprint([1; 32]),
        description: "kill".to_owned(),
        direct: true,
    }
}

fn arena(block_bytes: usize) -> Arc<Arena> {
    let layout = SlotLayout::aligned(block_bytes, 4096, 2).expect("a layout");
    let region = SystemAllocator.allocate(layout.bytes().expect("bytes"), 4096).expect("memory");
    Arena::new(region, layout).expect("an arena")
}

fn content(number: u32, bytes: usize) -> Vec<u8> {
    (0_u32..).flat_map(|at| (at ^ number.wrapping_mul(0x9E37)).to_le_bytes()).take(bytes).collect()
}

fn store(storage: &DiskStorage, memory: &Arc<Arena>, slot: u32, number: u32, bytes: usize) {
    let mut source = memory.write(0).expect("a free slot");
    source.write(0, &content(number, bytes)).expect("room");
    let identity = Identity {
        sequence_hash: u64::from(number),
        parent: None,
        local_hash: 1,
        position: number,
    };
    let block = NewBlock { identity, bytes, checksum: None };
    let place = Place::Slot(slot);
    storage.store(place, &block, &source.into_read(), &Cancel::new()).expect("stored");
}

fn is_right(opened: &Opened, memory: &Arc<Arena>, bytes: usize) -> BTreeMap<u32, u32> {
    let mut numbers = BTreeMap::new();
    for found in &opened.blocks {
        let mut target = memory.write(1).expect("a free slot");
        let load =
            opened.storage.load(Place::Slot(found.slot), &found.block, &mut target, &Cancel::new());
        assert_eq!(load, Ok(()), "slot {}", found.slot);
        let number = found.block.identity.position;
        assert_eq!(target.as_slice(), Some(&*content(number, bytes)));
        numbers.insert(found.slot, number);
    }
    numbers
}

/// Writes blocks, slot after slot, and reports each one.
fn write_until_killed(folder: &Path, first: u32) {
    let memory = arena(BYTES);
    let storage = DiskStorage::open(&config(folder, BYTES, SLOTS), 1).expect("a tier").storage;
    let mut out = std::io::stdout();
    for number in first.. {
        store(&storage, &memory, number % SLOTS, number, BYTES);
        writeln!(out, "stored {number}").and_then(|()| out.flush()).expect("somebody reads");
    }
}

#[test]
fn nothing_is_lost_and_nothing_is_wrong_after_sigkill() {
    let name = "nothing_is_lost_and_nothing_is_wrong_after_sigkill";
    if let Some(folder) = env::var_os(FOLDER).map(PathBuf::from) {
        let first = env::var_os(FIRST).expect("a number").to_str().expect("a text").parse();
        write_until_killed(&folder, first.expect("a number"));
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let memory = arena(BYTES);
    let mut next = 0;
    let mut expected = BTreeMap::new();
    for round in 0..ROUNDS {
        let mut child = Command::new(env::current_exe().expect("this test"))
            .args(["--exact", name, "--nocapture"])
            .env(FOLDER, folder.path())
            .env(FIRST, next.to_string())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a child");
        let lines = BufReader::new(child.stdout.take().expect("its output")).lines();
        let mut stored = 0;
        for line in lines.map_while(Result::ok) {
            let Some(number) = line.strip_prefix("stored ") else { continue };
            let number: u32 = number.parse().expect("a number");
            expected.insert(number % SLOTS, number);
            (next, stored) = (number + 1, stored + 1);
            if stored == 20 + round * 7 {
                // The child continues meanwhile. Read its reports until its output ends.
                child.kill().expect("a child to kill");
            }
        }
        child.wait().expect("a child that has ended");
        let opened = DiskStorage::open(&config(folder.path(), BYTES, SLOTS), 9).expect("the tier");
        assert_eq!(opened.damaged_records, 0);
        let found = is_right(&opened, &memory, BYTES);
        // The block that was being written may exist, or may have erased the old one.
        let open_slot = next % SLOTS;
        for (slot, number) in expected.iter().filter(|(slot, _)| **slot != open_slot) {
            assert_eq!(found.get(slot), Some(number), "round {round}, slot {slot}");
        }
        let there = found.get(&open_slot).copied();
        let possible = [None, expected.get(&open_slot).copied(), Some(next)];
        assert!(possible.contains(&there), "round {round}: {there:?}");
        expected = found;
        next += 1;
    }
}

/// 10,000 blocks are usable immediately, because only the table is read.
#[test]
fn ten_thousand_blocks_are_found_within_two_seconds() {
    const SMALL: usize = 4096;
    let folder = tempfile::tempdir().expect("a folder");
    let memory = arena(SMALL);
    let config = config(folder.path(), SMALL, 10_000);
    let storage = DiskStorage::open(&config, 1).expect("a tier").storage;
    for number in 0..10_000 {
        store(&storage, &memory, number, number, SMALL);
    }
    drop(storage);
    let start = Instant::now();
    let opened = DiskStorage::open(&config, 2).expect("the tier");
    let took = start.elapsed();
    assert_eq!(opened.blocks.len(), 10_000);
    assert!(took.as_secs() < 2, "{took:?}");
    assert_eq!(is_right(&opened, &memory, SMALL).len(), 10_000);
}

/// If the file can't get its size, opening fails and reports the required size.
#[test]
fn a_full_disk_is_named() {
    let name = "a_full_disk_is_named";
    if let Some(folder) = env::var_os(FOLDER).map(PathBuf::from) {
        let config = config(&folder, BYTES, SLOTS);
        match DiskStorage::open(&config, 1) {
            Err(error @ DiskError::Full { .. }) => println!("refused: {error}"),
            other => panic!("{other:?}"),
        }
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    // A limit of the system on the size of files, in units of 512 or 1,024 bytes.
    let script = "trap '' XFSZ; ulimit -f 1000; exec \"$@\"";
    let output = Command::new("sh")
        .args(["-c", script, "sh"])
        .arg(env::current_exe().expect("this test"))
        .args(["--exact", name, "--nocapture"])
        .env(FOLDER, folder.path())
        .output()
        .expect("a shell");
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(text.contains("no room for 2101248 bytes"), "{text}{errors}");
}
