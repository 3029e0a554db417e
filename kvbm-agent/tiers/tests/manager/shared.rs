//! Engine memory that another process maps. It reads and writes at any time, but its wrong bytes never leave its own
//! slots.

use crate::world::{
    BLOCK_BYTES, Faults, Sizes, bytes_of, chain, commit, config, is_idle, names, request, settle,
    storages,
};
use kvasir_blocks::{BlockIdentity, BlockTier};
use kvasir_memory::{Arena, Backing, SharedStorage, SlotLayout};
use kvasir_tiers::manager::{HostTier, KvBlockManager, ReadError};
use kvasir_tiers::{Checksum, HostStorage};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

const LEASE: Duration = Duration::from_secs(60);

/// An engine in another process: it maps the memory, and writes a block from its input, or reads a block to its output.
const ENGINE: &str = r#"
import mmap, struct, sys
with open(sys.argv[1], "r+b") as file:
    memory = mmap.mmap(file.fileno(), 0)
magic, version, start, block, stride, slots = struct.unpack_from("<8sIIQQQ", memory)
at = start + stride * int(sys.argv[3])
if sys.argv[2] == "write":
    memory[at:at + block] = sys.stdin.buffer.read(block)
else:
    sys.stdout.buffer.write(memory[at:at + block])
"#;

fn engine(memory: &Path, does: &str, slot: u32, input: &[u8]) -> Vec<u8> {
    let mut child = Command::new("python3")
        .args(["-c", ENGINE])
        .arg(memory)
        .args([does, &slot.to_string()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("python3");
    child.stdin.take().expect("its input").write_all(input).expect("it reads");
    let output = child.wait_with_output().expect("its output");
    assert!(output.status.success(), "the engine failed");
    output.stdout
}

/// A manager whose engines' memory is shared: accelerator memory (G1) or host memory (G2).
fn start(sizes: Sizes, folder: &Path) -> (KvBlockManager, PathBuf) {
    let mut storages = storages(sizes, &folder.join("disk"), &Faults::none());
    let slots = if sizes.device > 0 { sizes.device } else { sizes.host };
    let layout = SlotLayout::aligned(BLOCK_BYTES, 4096, slots).expect("a layout");
    let memory = SharedStorage::create(&Backing::Memfd, layout).expect("shared memory");
    let path = memory.path();
    let arena = Arena::new(Box::new(memory), layout).expect("an arena");
    if sizes.device > 0 {
        storages.device = Some(arena);
    } else {
        let storage = Arc::new(HostStorage::new(Arc::clone(&arena)));
        storages.host = Some(HostTier { arena, storage });
    }
    (KvBlockManager::start(config(sizes), &storages).expect("a manager"), path)
}

const SIZES: [Sizes; 2] =
    [Sizes { device: 4, host: 8, disk: 16 }, Sizes { device: 0, host: 4, disk: 16 }];

/// Evicts all blocks in memory.
fn forget(manager: &KvBlockManager) {
    for tier in [BlockTier::Device, BlockTier::Host] {
        if let Some(pool) = manager.state().pool(tier) {
            pool.reset_inactive();
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn another_process_writes_blocks_and_reads_them_after_they_came_back_from_the_disk() {
    for sizes in SIZES {
        let folder = tempfile::tempdir().expect("a folder");
        let (manager, memory) = start(sizes, folder.path());
        let session = manager.open_session("another process").expect("a session");
        let blocks = chain(1, 3);
        for (leased, block) in session.allocate(3, LEASE).expect("slots").iter().zip(&blocks) {
            engine(&memory, "write", leased.slot.0, &bytes_of(block.sequence));
            session.commit(leased.slot, &commit(block)).expect("a block");
        }
        session.end();
        settle(&manager).await;
        forget(&manager);
        assert_eq!(manager.find(&names(&blocks)).nearest(BlockTier::Disk), 3);
        let session = manager.open_session("another process").expect("a session");
        let onboarded = session.onboard(&names(&blocks), request()).await.expect("an answer");
        assert_eq!((onboarded.blocks.len(), onboarded.stopped), (3, None));
        for held in &onboarded.blocks {
            let bytes = engine(&memory, "read", held.slot.0, &[]);
            assert!(bytes == bytes_of(held.identity.sequence), "{held:?}");
        }
        // If the other process writes where it may only read, this is detected, and the bytes are not copied.
        let spoilt = onboarded.blocks[0];
        engine(&memory, "write", spoilt.slot.0, &[7; BLOCK_BYTES]);
        assert_eq!(session.read(spoilt.slot), Err(ReadError::Corrupt { slot: spoilt.slot.0 }));
        session.end();
        let session = manager.open_session("another process").expect("a session");
        let onboarded = session.onboard(&names(&blocks), request()).await.expect("an answer");
        let found_in = onboarded.blocks[0].found_in;
        assert_ne!(found_in, manager.engine_tier(), "there is a good copy further down");
        for held in &onboarded.blocks {
            assert_eq!(session.read(held.slot).expect("bytes"), bytes_of(held.identity.sequence));
        }
    }
}

/// Writes right and wrong bytes alternately into a slot, through a separate mapping, until `stop` is set.
fn scribble(memory: &Path, slot: u32, block: &BlockIdentity, stop: &AtomicBool) {
    let memory = SharedStorage::open(memory).expect("the same memory");
    let layout = memory.layout();
    let arena = Arena::new(Box::new(memory), layout).expect("an arena");
    let right = bytes_of(block.sequence);
    let mut wrong = right.clone();
    wrong[BLOCK_BYTES - 1] ^= 1;
    wrong[0] ^= 1;
    while !stop.load(Ordering::Relaxed) {
        for bytes in [&wrong, &right] {
            arena.write(slot).expect("its own claims").write(0, bytes).expect("room");
        }
    }
}

/// Commits a block whose memory is overwritten until its copies were made. The checksum states the right bytes.
fn commit_scribbled(manager: &KvBlockManager, memory: &Path, block: &BlockIdentity) {
    let session = manager.open_session("scribbler").expect("a session");
    let slot = session.allocate(1, LEASE).expect("a slot")[0].slot;
    let right = bytes_of(block.sequence);
    session.write(slot, 0, &right).expect("a leased slot");
    let mut stated = commit(block);
    stated.checksum = Some(Checksum::of(block.sequence.0, &right));
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| scribble(memory, slot.0, block, &stop));
        let committed = (0..1_000).any(|_| session.commit(slot, &stated).is_ok());
        while committed && !is_idle(manager) {
            thread::yield_now();
        }
        stop.store(true, Ordering::Relaxed);
    });
    session.end();
}

#[tokio::test(flavor = "multi_thread")]
async fn memory_that_changes_while_it_is_copied_is_the_block_or_nothing() {
    for sizes in SIZES {
        let folder = tempfile::tempdir().expect("a folder");
        let (manager, memory) = start(sizes, folder.path());
        let mut kept = 0;
        for number in 0..60 {
            let block = chain(100 + number, 1)[0];
            commit_scribbled(&manager, &memory, &block);
            settle(&manager).await;
            forget(&manager);
            let session = manager.open_session("reader").expect("a session");
            let onboarded = session.onboard(&[block.sequence], request()).await.expect("an answer");
            for held in &onboarded.blocks {
                let bytes = engine_bytes(&manager, held.slot.0);
                assert!(bytes == bytes_of(block.sequence), "wrong bytes of {held:?}");
            }
            kept += onboarded.blocks.len();
        }
        println!("{kept} of 60 blocks were copied whole");
        assert!((1..60).contains(&kept), "{kept} of 60: nothing was tried");
    }
}

/// The bytes that an engine reads directly from the memory.
fn engine_bytes(manager: &KvBlockManager, slot: u32) -> Vec<u8> {
    let mut bytes = vec![0; BLOCK_BYTES];
    manager.arena().read(slot).expect("a held slot").read(0, &mut bytes).expect("a block");
    bytes
}
