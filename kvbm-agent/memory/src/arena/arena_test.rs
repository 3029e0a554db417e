use super::{Arena, ArenaError, SlotLayout, copy};
use crate::claims::ClaimError;
use crate::region::{AccessError, StorageAllocator};
use crate::shared::{Backing, SharedStorage};
use crate::system::SystemAllocator;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

const LAYOUT: SlotLayout = SlotLayout { block_bytes: 40_001, stride_bytes: 40_960, slots: 4 };

fn private() -> Arc<Arena> {
    let bytes = LAYOUT.bytes().expect("a layout");
    let region = SystemAllocator.allocate(bytes, 4096).expect("memory");
    Arena::new(region, LAYOUT).expect("an arena")
}

fn shared() -> Arc<Arena> {
    let region = SharedStorage::create(&Backing::Memfd, LAYOUT).expect("shared memory");
    Arena::new(Box::new(region), LAYOUT).expect("an arena")
}

fn pattern(seed: u32) -> Vec<u8> {
    (0_u8..251).cycle().map(|at| at ^ seed.to_le_bytes()[0]).take(LAYOUT.block_bytes).collect()
}

#[test]
fn a_slot_has_one_writer_or_many_readers() {
    let arena = private();
    let first = arena.read(1).expect("a reader");
    let second = arena.read(1).expect("another reader");
    assert_eq!(arena.write(1).err(), Some(ClaimError::Read(1)));
    drop((first, second));
    let writer = arena.write(1).expect("a writer");
    assert_eq!(arena.write(1).err(), Some(ClaimError::Written(1)));
    assert_eq!(arena.read(1).err(), Some(ClaimError::Written(1)));
    let reader = writer.into_read();
    assert_eq!(arena.write(1).err(), Some(ClaimError::Read(1)));
    drop(reader);
    assert_eq!(arena.is_free(1), Ok(true));
    assert_eq!(arena.read(4).err(), Some(ClaimError::Unknown { slot: 4, slots: 4 }));
}

#[test]
fn slots_do_not_overlap_and_keep_what_was_written() {
    for arena in [private(), shared()] {
        for slot in 0..LAYOUT.slots {
            let mut writer = arena.write(slot).expect("a writer");
            writer.write(0, &pattern(slot)).expect("room");
        }
        for slot in 0..LAYOUT.slots {
            let reader = arena.read(slot).expect("a reader");
            let mut back = vec![0; LAYOUT.block_bytes];
            reader.read(0, &mut back).expect("a block");
            assert_eq!(back, pattern(slot));
            let is_private = reader.as_slice().is_some();
            assert_eq!(is_private, arena.kind() == crate::RegionKind::System);
        }
    }
}

#[test]
fn nothing_beyond_a_block_is_reached() {
    for arena in [private(), shared()] {
        let mut writer = arena.write(0).expect("a writer");
        let limit = LAYOUT.block_bytes;
        let outside = Err(AccessError::Outside { offset: limit - 1, bytes: 2, limit });
        assert_eq!(writer.write(limit - 1, &[1, 2]), outside);
        assert!(writer.write(usize::MAX, &[1, 2]).is_err());
        assert_eq!(writer.into_read().read(limit - 1, &mut [0, 0]), outside);
    }
}

#[test]
fn layouts_that_cannot_be_are_refused() {
    let layout = |block_bytes, stride_bytes, slots| SlotLayout { block_bytes, stride_bytes, slots };
    assert_eq!(layout(0, 8, 1).bytes(), Err(ArenaError::Empty));
    assert_eq!(layout(8, 8, 0).bytes(), Err(ArenaError::Empty));
    assert_eq!(
        layout(9, 8, 1).bytes(),
        Err(ArenaError::Stride { block_bytes: 9, stride_bytes: 8 })
    );
    assert_eq!(layout(8, usize::MAX / 2, 3).bytes(), Err(ArenaError::Overflow));
    assert_eq!(SlotLayout::aligned(8, 3, 1), Err(ArenaError::Alignment(3)));
    let region = SystemAllocator.allocate(4096, 4096).expect("memory");
    let outcome = Arena::new(region, layout(4096, 4096, 2)).map(drop);
    assert_eq!(outcome, Err(ArenaError::TooSmall { needed: 8192, there: 4096 }));
}

#[test]
fn copies_show_every_byte_once_whatever_the_memory_is() {
    for source_arena in [private(), shared()] {
        for target_arena in [private(), shared()] {
            let mut source = source_arena.write(2).expect("a writer");
            source.write(0, &pattern(7)).expect("room");
            let source = source.into_read();
            let mut target = target_arena.write(3).expect("a writer");
            let mut seen = Vec::new();
            let look = |piece: &[u8]| {
                seen.extend_from_slice(piece);
                true
            };
            assert_eq!(copy(&source, &mut target, LAYOUT.block_bytes, look), Ok(true));
            assert_eq!(seen, pattern(7));
            let mut back = vec![0; LAYOUT.block_bytes];
            target.into_read().read(0, &mut back).expect("a block");
            assert_eq!(back, pattern(7));
        }
    }
}

#[test]
fn a_copy_stops_when_it_is_told_to() {
    let arena = private();
    let source = arena.read(0).expect("a reader");
    let mut target = arena.write(1).expect("a writer");
    let mut pieces = 0;
    let look = |_: &[u8]| {
        pieces += 1;
        pieces < 2
    };
    assert_eq!(copy(&source, &mut target, LAYOUT.block_bytes, look), Ok(false));
    assert_eq!(pieces, 2);
}

/// Writers fill a slot with one value and verify it; readers never see two different values in it.
#[test]
fn threads_never_see_half_a_block() {
    let arena = private();
    let is_over = AtomicBool::new(false);
    let write = |value: u8| {
        let Ok(mut writer) = arena.write(u32::from(value % 2)) else { return };
        let block = writer.as_mut_slice().expect("a private slot");
        block.fill(value);
        assert!(block.iter().all(|byte| *byte == value));
    };
    let read = |slot: u32| {
        let Ok(reader) = arena.read(slot) else { return };
        let block = reader.as_slice().expect("a private slot");
        let first = block.first();
        assert!(block.iter().all(|byte| Some(byte) == first));
    };
    thread::scope(|scope| {
        for seed in 0..2_u8 {
            let write = &write;
            let is_over = &is_over;
            scope.spawn(move || {
                (0..200_u8).for_each(|round| write(round ^ seed));
                is_over.store(true, Ordering::Relaxed);
            });
        }
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                (0..2).for_each(read);
            }
        });
    });
    assert_eq!(arena.is_free(0), Ok(true));
    assert_eq!(arena.is_free(1), Ok(true));
}
