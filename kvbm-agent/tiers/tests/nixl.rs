//! A file that NIXL reads and writes, with PyPI's library and its plugin POSIX.
#![expect(clippy::expect_used, reason = "a test fails by panicking")]

#[path = "../../memory/tests/nixl/found.rs"]
#[expect(unreachable_pub, reason = "shared with other tests")]
mod found;

use found::library;
use kvasir_memory::{Arena, SlotLayout, StorageAllocator, SystemAllocator};
use kvasir_tiers::nixl::{NixlStorage, NixlStorageConfig};
use kvasir_tiers::{Cancel, Checksum, Identity, NewBlock, Place, Storage, TransferError};
use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const BYTES: usize = 50_001;
const SLOTS: u32 = 4;

fn storage(file: &Path) -> NixlStorage {
    let library = library("../memory/tests/nixl/library");
    let config =
        NixlStorageConfig { library, file: file.to_owned(), block_bytes: BYTES, slots: SLOTS };
    NixlStorage::create(&config).expect("a storage")
}

fn memory() -> Arc<Arena> {
    let layout = SlotLayout::aligned(BYTES, 4096, SLOTS).expect("a layout");
    let region = SystemAllocator.allocate(layout.bytes().expect("bytes"), 4096).expect("memory");
    Arena::new(region, layout).expect("an arena")
}

fn bytes_of(name: u64, bytes: usize) -> Vec<u8> {
    (0_u64..).map(|at| (at * at + name * 7).to_le_bytes()[0]).take(bytes).collect()
}

fn block(name: u64, bytes: usize) -> NewBlock {
    let identity = Identity { sequence_hash: name, parent: None, local_hash: 1, position: 0 };
    NewBlock { identity, bytes, checksum: None }
}

#[test]
fn blocks_go_to_the_file_and_come_back() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("blocks");
    let storage = storage(&path);
    let memory = memory();
    let cancel = Cancel::new();
    assert_eq!((storage.block_bytes(), storage.slots()), (BYTES, Some(SLOTS)));
    let sealed: Vec<_> = (0..SLOTS)
        .map(|slot| {
            let name = u64::from(slot) + 5;
            // The last block is shorter than its slot.
            let bytes = if slot + 1 == SLOTS { 777 } else { BYTES };
            let mut source = memory.write(slot).expect("a free slot");
            source.write(0, &bytes_of(name, bytes)).expect("room");
            let stored =
                storage.store(Place::Slot(slot), &block(name, bytes), &source.into_read(), &cancel);
            let stored = stored.expect("stored");
            assert_eq!(stored.checksum, Checksum::of(name, &bytes_of(name, bytes)));
            stored
        })
        .collect();
    let file = OpenOptions::new().read(true).write(true).open(&path).expect("the file");
    for (slot, block) in (0_u32..).zip(&sealed) {
        let expected = bytes_of(block.identity.sequence_hash, block.bytes);
        let mut on_disk = vec![0; block.bytes];
        let stride = BYTES.next_multiple_of(4096) as u64;
        file.read_exact_at(&mut on_disk, u64::from(slot) * stride).expect("the block");
        assert!(on_disk == expected, "slot {slot} of the file has other bytes");
        let mut target = memory.write(slot).expect("a free slot");
        target.write(0, &vec![0; BYTES]).expect("room");
        assert_eq!(storage.load(Place::Slot(slot), block, &mut target, &cancel), Ok(()));
        assert!(target.as_slice().and_then(|bytes| bytes.get(..block.bytes)) == Some(&*expected));
    }
    // A byte changed on the disk is detected.
    file.write_all_at(&[0xFF, 0xFF], 100).expect("the file");
    let mut target = memory.write(0).expect("a free slot");
    let first = sealed.first().expect("a block");
    let outcome = storage.load(Place::Slot(0), first, &mut target, &cancel);
    assert!(matches!(outcome, Err(TransferError::Corrupt { .. })), "{outcome:?}");
}

/// The storage continues after a failure.
#[test]
fn a_file_that_was_cut_off_is_noticed() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("blocks");
    let storage = storage(&path);
    let memory = memory();
    let cancel = Cancel::new();
    let source = memory.write(0).expect("a free slot").into_read();
    let store = || storage.store(Place::Slot(3), &block(1, BYTES), &source, &cancel);
    let stored = store().expect("stored");
    let file = OpenOptions::new().write(true).open(&path).expect("the file");
    file.set_len(4096).expect("cut off");
    let mut target = memory.write(1).expect("a free slot");
    target.write(0, &[1; 100]).expect("room");
    let mut load = || storage.load(Place::Slot(3), &stored, &mut target, &cancel);
    load().expect_err("the block is not there");
    store().expect("stored again");
    assert_eq!(load(), Ok(()));
}

#[test]
fn what_cannot_be_is_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("blocks");
    let config = |library: PathBuf, file: PathBuf, slots| {
        let config = NixlStorageConfig { library, file, block_bytes: BYTES, slots };
        NixlStorage::create(&config).map(drop).expect_err("refused").to_string()
    };
    let none = config(PathBuf::from("/nowhere.so"), path.clone(), 1);
    assert!(none.contains("pip install nixl-cu12"), "{none}");
    let nowhere = config(PathBuf::new(), folder.path().join("none/blocks"), 1);
    assert!(nowhere.contains("none/blocks"), "{nowhere}");
    assert!(config(PathBuf::new(), path.clone(), 0).contains("at least one slot"));
    let storage = storage(&path);
    let memory = memory();
    let cancel = Cancel::new();
    let source = memory.write(0).expect("a free slot").into_read();
    let store = |place, bytes| storage.store(place, &block(1, bytes), &source, &cancel);
    for bytes in [0, BYTES + 1] {
        let size = TransferError::Size { bytes, limit: BYTES };
        assert_eq!(store(Place::Slot(0), bytes), Err(size));
    }
    assert_eq!(store(Place::Named, BYTES), Err(TransferError::Place));
    assert!(matches!(store(Place::Slot(SLOTS), BYTES), Err(TransferError::Claim(_))));
    cancel.cancel();
    assert_eq!(store(Place::Slot(0), BYTES), Err(TransferError::Cancelled));
}
