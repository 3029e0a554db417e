use super::{DiskConfig, DiskError, DiskStorage, Way};
use crate::block::{Fingerprint, Sealed};
use crate::cancel::Cancel;
use crate::error::TransferError;
use crate::storage::{Place, Storage};
use crate::testing::{arena, block, filled, holds};
use kvasir_memory::{Arena, Backing, SharedStorage, SlotLayout};
use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

const BYTES: usize = 10_000;

fn config(folder: &Path) -> DiskConfig {
    DiskConfig {
        path: folder.join("tier"),
        block_bytes: BYTES,
        slots: 8,
        fingerprint: Fingerprint([7; 32]),
        description: "a model of tests".to_owned(),
        direct: true,
    }
}

fn folder() -> tempfile::TempDir {
    tempfile::tempdir().expect("a folder")
}

fn store(storage: &DiskStorage, memory: &Arc<Arena>, slot: u32, number: u32) -> Sealed {
    let source = filled(memory, 0, number, BYTES);
    let block = block(number, BYTES);
    storage.store(Place::Slot(slot), &block, &source, &Cancel::new()).expect("a stored block")
}

fn load(
    storage: &DiskStorage,
    memory: &Arc<Arena>,
    slot: u32,
    block: &Sealed,
) -> Result<bool, TransferError> {
    let mut target = memory.write(1).expect("a free slot");
    storage.load(Place::Slot(slot), block, &mut target, &Cancel::new())?;
    Ok(holds(target, block.identity.position, BYTES))
}

#[test]
fn blocks_come_back_after_a_restart_in_the_order_of_their_writes() {
    let folder = folder();
    let memory = arena(BYTES, 2);
    let opened = DiskStorage::open(&config(folder.path()), 1).expect("a new tier");
    assert_eq!(opened.blocks, []);
    let storage = opened.storage;
    assert!(storage.is_preallocated());
    let stored = [3, 1, 5].map(|slot| (slot, store(&storage, &memory, slot, slot + 20)));
    for (slot, block) in &stored {
        assert_eq!(load(&storage, &memory, *slot, block), Ok(true));
    }
    storage.erase(Place::Slot(1), 0, &Cancel::new()).expect("an erased block");
    drop(storage);
    let opened = DiskStorage::open(&config(folder.path()), 2).expect("the same tier");
    let found: Vec<_> = opened.blocks.iter().map(|at| (at.slot, at.block)).collect();
    assert_eq!(found, [stored[0], stored[2]]);
    assert_eq!((opened.damaged_records, opened.superseded_records), (0, 0));
    for (slot, block) in &found {
        assert_eq!(load(&opened.storage, &memory, *slot, block), Ok(true));
    }
}

#[test]
fn a_slot_that_is_written_again_has_the_new_block_only() {
    let folder = folder();
    let memory = arena(BYTES, 2);
    let storage = DiskStorage::open(&config(folder.path()), 1).expect("a new tier").storage;
    let old = store(&storage, &memory, 2, 1);
    let new = store(&storage, &memory, 2, 2);
    assert_eq!(load(&storage, &memory, 2, &new), Ok(true));
    let outcome = load(&storage, &memory, 2, &old);
    assert!(matches!(outcome, Err(TransferError::Corrupt { .. })), "{outcome:?}");
    drop(storage);
    let blocks = DiskStorage::open(&config(folder.path()), 2).expect("the same tier").blocks;
    assert_eq!(blocks.iter().map(|at| at.block).collect::<Vec<_>>(), [new]);
}

#[test]
fn a_block_in_two_slots_counts_once_the_newer_one() {
    let folder = folder();
    let memory = arena(BYTES, 2);
    let storage = DiskStorage::open(&config(folder.path()), 1).expect("a new tier").storage;
    store(&storage, &memory, 6, 9);
    store(&storage, &memory, 2, 9);
    drop(storage);
    for superseded in [1, 0] {
        let opened = DiskStorage::open(&config(folder.path()), 2).expect("the same tier");
        assert_eq!(opened.blocks.iter().map(|at| at.slot).collect::<Vec<_>>(), [2]);
        assert_eq!(opened.superseded_records, superseded);
    }
}

#[test]
fn a_source_that_is_not_the_block_is_refused_and_the_slot_is_empty() {
    let folder = folder();
    let memory = arena(BYTES, 2);
    let storage = DiskStorage::open(&config(folder.path()), 1).expect("a new tier").storage;
    let sealed = store(&storage, &memory, 4, 1);
    let other = filled(&memory, 0, 2, BYTES);
    let outcome = storage.store(Place::Slot(4), &sealed.into(), &other, &Cancel::new());
    assert!(matches!(outcome, Err(TransferError::Corrupt { .. })), "{outcome:?}");
    drop(storage);
    assert_eq!(DiskStorage::open(&config(folder.path()), 2).expect("the same tier").blocks, []);
}

#[test]
fn damage_on_the_disk_is_found() {
    let folder = folder();
    let memory = arena(BYTES, 2);
    let config = config(folder.path());
    let storage = DiskStorage::open(&config, 1).expect("a new tier").storage;
    let first = store(&storage, &memory, 0, 1);
    let second = store(&storage, &memory, 1, 2);
    let at = storage.slot_offset(0) + 9_999;
    drop(storage);
    let file = OpenOptions::new().write(true).open(&config.path).expect("the file");
    // Damages a byte of the first block, and a byte of the second block's record.
    file.write_all_at(&[0xFF], at).expect("damage");
    drop(file);
    let table = folder.path().join("tier.kvasir-table");
    let table = OpenOptions::new().write(true).open(table).expect("the table");
    table.write_all_at(&[0xFF], 64 + 8).expect("damage");
    let opened = DiskStorage::open(&config, 2).expect("the same tier");
    assert_eq!(opened.blocks.iter().map(|at| at.block).collect::<Vec<_>>(), [first]);
    assert_eq!(opened.damaged_records, 1);
    let outcome = load(&opened.storage, &memory, 0, &first);
    assert!(matches!(outcome, Err(TransferError::Corrupt { .. })), "{outcome:?}");
    // The data is present, but without a record.
    assert_eq!(load(&opened.storage, &memory, 1, &second), Ok(true));
}

#[test]
fn a_file_has_one_process() {
    let folder = folder();
    let config = config(folder.path());
    let first = DiskStorage::open(&config, 1).expect("a new tier");
    let second = DiskStorage::open(&config, 2).map(drop);
    assert!(matches!(second, Err(DiskError::InUse { .. })), "{second:?}");
    drop(first);
    DiskStorage::open(&config, 2).expect("the same tier");
}

#[test]
fn a_file_that_is_deleted_under_its_tier_keeps_its_table() {
    let folder = folder();
    let config = config(folder.path());
    let memory = arena(BYTES, 2);
    let first = DiskStorage::open(&config, 1).expect("a new tier").storage;
    let block = store(&first, &memory, 3, 1);
    fs::remove_file(&config.path).expect("the file");
    let table = fs::read(folder.path().join("tier.kvasir-table")).expect("the table");
    let second = DiskStorage::open(&config, 2).map(drop);
    assert!(matches!(second, Err(DiskError::InUse { .. })), "{second:?}");
    assert_eq!(fs::read(folder.path().join("tier.kvasir-table")).expect("the table"), table);
    assert_eq!(load(&first, &memory, 3, &block), Ok(true));
    drop(first);
    assert_eq!(DiskStorage::open(&config, 2).expect("a new tier").blocks, []);
}

#[test]
fn a_file_that_is_cut_off_under_its_tier_gives_errors_and_then_room_again() {
    let folder = folder();
    let memory = arena(BYTES, 2);
    let config = config(folder.path());
    let storage = DiskStorage::open(&config, 1).expect("a new tier").storage;
    let block = store(&storage, &memory, 7, 1);
    OpenOptions::new()
        .write(true)
        .open(&config.path)
        .and_then(|file| file.set_len(4_096))
        .expect("a cut");
    let outcome = load(&storage, &memory, 7, &block);
    assert!(matches!(outcome, Err(TransferError::Short { .. })), "{outcome:?}");
    // Slots before and after the new end are written as usual.
    for slot in [0, 7] {
        let block = store(&storage, &memory, slot, 2);
        assert_eq!(load(&storage, &memory, slot, &block), Ok(true));
    }
    // Slots in between contain zeros and no block.
    let outcome = load(&storage, &memory, 4, &block);
    assert!(matches!(outcome, Err(TransferError::Corrupt { .. })), "{outcome:?}");
}

#[test]
fn other_files_are_refused_and_left_alone() {
    let folder = folder();
    let config = config(folder.path());
    drop(DiskStorage::open(&config, 1).expect("a new tier"));
    let refusal = |config: &DiskConfig| {
        DiskStorage::open(config, 1).map(drop).expect_err("a refusal").to_string()
    };
    let other = DiskConfig {
        fingerprint: Fingerprint([8; 32]),
        description: "another model".to_owned(),
        ..config.clone()
    };
    let text = refusal(&other);
    for part in ["a model of tests", "another model", "0707", "0808"] {
        assert!(text.contains(part), "{text}");
    }
    let text = refusal(&DiskConfig { block_bytes: 20_000, ..config.clone() });
    assert!(text.contains("10000 bytes") && text.contains("20000 bytes"), "{text}");
    let text = refusal(&DiskConfig { slots: 9, ..config.clone() });
    assert!(text.contains("8 blocks") && text.contains("9 blocks"), "{text}");

    let file = OpenOptions::new().write(true).open(&config.path).expect("the file");
    file.write_all_at(&[2], 8).expect("a version");
    let text = refusal(&config);
    assert!(text.contains("version 2") && text.contains("version 1"), "{text}");

    fs::write(&config.path, "precious").expect("a file");
    assert!(refusal(&config).contains("is not a disk tier"));
    assert_eq!(fs::read(&config.path).expect("the file"), b"precious");
    let impossible = refusal(&DiskConfig { slots: 0, ..config.clone() });
    assert!(impossible.contains("not possible"), "{impossible}");
    let folder = refusal(&DiskConfig { path: folder.path().join("no/such"), ..config });
    assert!(folder.contains("cannot open it"), "{folder}");
}

/// Deleting the file, or its table, results in an empty tier.
#[test]
fn a_file_and_its_table_count_together_only() {
    let folder = folder();
    let memory = arena(BYTES, 2);
    let config = config(folder.path());
    let table = folder.path().join("tier.kvasir-table");
    let fill = |file_id: u64| {
        let opened = DiskStorage::open(&config, file_id).expect("a tier");
        assert_eq!(opened.blocks, []);
        store(&opened.storage, &memory, 0, 1);
    };
    fill(1);
    let old = fs::read(&table).expect("the table");
    fs::remove_file(&config.path).expect("the file");
    fill(2);
    fs::remove_file(&table).expect("the table");
    fill(2);
    // The table of a different file.
    fs::write(&table, old).expect("the table");
    let opened = DiskStorage::open(&config, 3).expect("the tier");
    assert_eq!((opened.blocks.len(), opened.damaged_records), (0, 1));
}

#[test]
fn a_file_that_was_never_finished_is_begun_again() {
    let folder = folder();
    let config = config(folder.path());
    fs::write(&config.path, [0; 5000]).expect("a file");
    let opened = DiskStorage::open(&config, 1).expect("a new tier");
    assert_eq!(opened.blocks, []);
}

/// Memory that direct I/O can't use, and memory that other processes write.
#[test]
fn any_memory_is_good_enough() {
    let folder = folder();
    let storage = DiskStorage::open(&config(folder.path()), 1).expect("a new tier").storage;
    let layout = SlotLayout { block_bytes: BYTES, stride_bytes: BYTES, slots: 2 };
    let shared = SharedStorage::create(&Backing::Memfd, layout).expect("shared memory");
    let memories = [Arena::new(Box::new(shared), layout).expect("an arena"), {
        let region = kvasir_memory::SystemStorage::new(2 * BYTES, 4096).expect("memory");
        Arena::new(Box::new(region), layout).expect("an arena")
    }];
    for (slot, memory) in (0..).zip(&memories) {
        let block = store(&storage, memory, slot, 30 + slot);
        assert_eq!(load(&storage, memory, slot, &block), Ok(true));
    }
}

#[test]
fn without_direct_io_the_tier_says_why() {
    let folder = folder();
    let config = DiskConfig { direct: false, ..config(folder.path()) };
    let memory = arena(BYTES, 2);
    let storage = DiskStorage::open(&config, 1).expect("a new tier").storage;
    assert!(matches!(storage.way(), Way::Buffered { .. }));
    let block = store(&storage, &memory, 0, 1);
    assert_eq!(load(&storage, &memory, 0, &block), Ok(true));
}

#[test]
fn cancelled_transfers_leave_no_block() {
    let folder = folder();
    let memory = arena(BYTES, 2);
    let config = config(folder.path());
    let storage = DiskStorage::open(&config, 1).expect("a new tier").storage;
    let cancel = Cancel::new();
    cancel.cancel();
    let source = filled(&memory, 0, 1, BYTES);
    let outcome = storage.store(Place::Slot(0), &block(1, BYTES), &source, &cancel);
    assert_eq!(outcome, Err(TransferError::Cancelled));
    let named = storage.store(Place::Named, &block(1, BYTES), &source, &Cancel::new());
    assert_eq!(named, Err(TransferError::Place));
    drop(storage);
    assert_eq!(DiskStorage::open(&config, 2).expect("the same tier").blocks, []);
}
