//! Slots that this process fills itself, and the padding of slots that engines fill.

use crate::world::{BLOCK_BYTES, Faults, Sizes, bytes_of, chain, commit, config, names, storages};
use kvasir_blocks::layout::LayerOrder;
use kvasir_blocks::{BlockIdentity, LayoutForm};
use kvasir_memory::{
    Arena, Backing, Region, SharedStorage, SlotLayout, StorageAllocator, SystemAllocator,
};
use kvasir_tiers::manager::{
    Commit, CommitError, CommitKind, HostTier, KvBlockManager, ReadError, TierStorages,
};
use kvasir_tiers::{Checksum, HostStorage};
use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

const SLOTS: u32 = 4;
const SIZES: Sizes = Sizes { device: 0, host: SLOTS, disk: 0 };
/// Bytes of keys or values of one layer, and their bytes in a slot with alignment.
const PART: usize = 2_048;
const ALIGNED: usize = 4_096;

fn host(region: Box<dyn Region>, layout: SlotLayout) -> TierStorages {
    let arena = Arena::new(region, layout).expect("an arena");
    let storage = Arc::new(HostStorage::new(Arc::clone(&arena)));
    TierStorages { host: Some(HostTier { arena, storage }), ..TierStorages::default() }
}

/// A manager with mapped memory, and the file to map.
fn mapped() -> (KvBlockManager, PathBuf, u64) {
    let layout = SlotLayout::aligned(BLOCK_BYTES, 4_096, SLOTS).expect("a layout");
    let memory = SharedStorage::create(&Backing::Memfd, layout).expect("shared memory");
    let path = memory.path();
    let start = kvasir_memory::shared::HEADER_BYTES as u64;
    let manager = KvBlockManager::start(config(SIZES), &host(Box::new(memory), layout));
    (manager.expect("a manager"), path, start)
}

/// A manager whose keys and values are each aligned to 4 KiB.
fn padded() -> KvBlockManager {
    let layout = SlotLayout::aligned(4 * ALIGNED, 4_096, SLOTS).expect("a layout");
    let region = SystemAllocator.allocate(layout.bytes().expect("bytes"), 4_096).expect("memory");
    let mut config = config(SIZES);
    config.blocks.form = LayoutForm::LayerSeparate(LayerOrder::OuterContiguous);
    KvBlockManager::start(config, &host(region, layout)).expect("a manager")
}

/// A block with filled padding, and with the expected padding.
fn with_padding(block: &BlockIdentity, filler: u8) -> (Vec<u8>, Vec<u8>) {
    let mut dirty = Vec::new();
    let mut clean = Vec::new();
    for part in bytes_of(block.sequence).chunks(PART) {
        dirty.extend_from_slice(part);
        dirty.resize(dirty.len() + ALIGNED - PART, filler);
        clean.extend_from_slice(part);
        clean.resize(clean.len() + ALIGNED - PART, 0);
    }
    (dirty, clean)
}

#[tokio::test]
async fn padding_is_zero_whoever_fills_a_slot() {
    let manager = padded();
    let blocks = chain(1, 2);
    assert_eq!(manager.block_bytes(), 4 * ALIGNED);
    let session = manager.open_session("engine").expect("a session");
    let (dirty, clean) = with_padding(&blocks[0], 7);
    let sum = Checksum::of(blocks[0].sequence.0, &clean);
    let slots = session.allocate(2, Duration::from_secs(30)).expect("slots");
    session.write(slots[0].slot, 0, &dirty).expect("room");
    // A checksum that includes the engine's padding is wrong, and the slot stays leased.
    let stated = Some(Checksum::of(blocks[0].sequence.0, &dirty));
    let refused = session.commit(slots[0].slot, &Commit { checksum: stated, ..commit(&blocks[0]) });
    assert!(matches!(refused, Err(CommitError::Checksum { .. })), "{refused:?}");
    let stated = Commit { checksum: Some(sum), ..commit(&blocks[0]) };
    let held = session.commit(slots[0].slot, &stated).expect("a block").block;
    assert_eq!((held.checksum, session.read(held.slot).expect("bytes")), (sum, clean));
    // Equal blocks have equal bytes.
    session.write(slots[1].slot, 0, &with_padding(&blocks[0], 9).0).expect("room");
    let second = session.commit(slots[1].slot, &commit(&blocks[0])).expect("a block");
    assert_eq!((second.kind, second.block.checksum), (CommitKind::Duplicate, sum));
    // The same applies to blocks from a peer, written in order or not.
    let (dirty, clean) = with_padding(&blocks[1], 7);
    let mut slot = session.fill(1).expect("a slot").pop().expect("a slot");
    slot.write(0, &dirty).expect("room");
    let _filled = slot.commit(&commit(&blocks[1])).expect("a block");
    let held = session.hold_prefix(&names(&blocks)).expect("a session");
    assert_eq!(held.len(), 2);
    assert_eq!(session.read(held[1].slot).expect("bytes"), clean);
}

/// In whatever order a slot is filled, its checksum matches its bytes.
#[tokio::test]
async fn filled_slots_add_up_in_whatever_order() {
    let folder = tempfile::tempdir().expect("a folder");
    let own = storages(SIZES, &folder.path().join("disk"), &Faults::none());
    let private = KvBlockManager::start(config(SIZES), &own).expect("a manager");
    let (shared, ..) = mapped();
    for manager in [&private, &shared] {
        let session = manager.open_session("peers").expect("a session");
        let orders: [&[(usize, usize)]; 5] = [
            &[(0, BLOCK_BYTES)],
            &[(0, 100), (100, 5_000), (5_000, BLOCK_BYTES)],
            &[(5_000, BLOCK_BYTES), (0, 5_000)],
            // Some bytes twice, at the end and at the beginning.
            &[(0, BLOCK_BYTES), (8_000, BLOCK_BYTES)],
            &[(0, 100), (0, 100), (100, BLOCK_BYTES)],
        ];
        for (number, order) in (0..).zip(orders) {
            let block = chain(number + 1, 1)[0];
            let bytes = bytes_of(block.sequence);
            let mut slot = session.fill(1).expect("a slot").pop().expect("a slot");
            for &(from, to) in order {
                slot.write(from, &bytes[from..to]).expect("room");
            }
            let sum = Checksum::of(block.sequence.0, &bytes);
            let stated = Commit { checksum: Some(sum), ..commit(&block) };
            let filled = slot.commit(&stated).expect("a block");
            let held = session.hold_prefix(&names(&[block])).expect("a session");
            assert_eq!(session.read(held[0].slot).expect("bytes"), bytes, "{order:?}");
            assert!(session.release(held[0].slot));
            drop(filled);
        }
        // Different bytes in the same slot are a different block.
        let block = chain(9, 1)[0];
        let mut bytes = bytes_of(block.sequence);
        let sum = Checksum::of(block.sequence.0, &bytes);
        let mut slot = session.fill(1).expect("a slot").pop().expect("a slot");
        slot.write(0, &bytes).expect("room");
        bytes[77] ^= 1;
        slot.write(77, &bytes[77..78]).expect("room");
        let refused = slot.commit(&Commit { checksum: Some(sum), ..commit(&block) });
        assert!(matches!(refused, Err(CommitError::Checksum { .. })), "{refused:?}");
        let mut slot = session.fill(1).expect("a slot").pop().expect("a slot");
        let beyond = slot.write(1, &bytes);
        assert!(beyond.is_err(), "it does not fit");
    }
}

/// An engine writes to a slot that it does not own. The checksum covers the bytes written before, so the block's reader
/// detects the change.
#[tokio::test]
async fn a_filled_slot_that_an_engine_changes_is_noticed_by_readers() {
    let (manager, path, start) = mapped();
    let arena = OpenOptions::new().read(true).write(true).open(path).expect("the arena");
    let session = manager.open_session("peers").expect("a session");
    let block = chain(1, 1)[0];
    let bytes = bytes_of(block.sequence);
    let mut slot = session.fill(1).expect("a slot").pop().expect("a slot");
    slot.write(0, &bytes).expect("room");
    let at = start + u64::from(slot.slot().0) * BLOCK_BYTES as u64;
    arena.write_all_at(&[!bytes[5]], at + 5).expect("the engine writes");
    let stated =
        Commit { checksum: Some(Checksum::of(block.sequence.0, &bytes)), ..commit(&block) };
    let _filled = slot.commit(&stated).expect("a block");
    let held = session.hold_prefix(&names(&[block])).expect("a session");
    let read = session.read(held[0].slot);
    assert!(matches!(read, Err(ReadError::Corrupt { .. })), "{read:?}");
    assert!(session.hold_prefix(&names(&[block])).expect("a session").is_empty(), "withdrawn");
}
