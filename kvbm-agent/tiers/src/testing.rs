//! Blocks for tests.

use crate::block::{Identity, NewBlock};
use kvasir_memory::{Arena, ReadSlot, SlotLayout, StorageAllocator, SystemAllocator, WriteSlot};
use std::sync::Arc;

/// Memory of this process, aligned for direct I/O.
pub(crate) fn arena(block_bytes: usize, slots: u32) -> Arc<Arena> {
    let layout = SlotLayout::aligned(block_bytes, 4096, slots).expect("a layout");
    let region = SystemAllocator.allocate(layout.bytes().expect("bytes"), 4096).expect("memory");
    Arena::new(region, layout).expect("an arena")
}

/// Creates a test block with this number.
pub(crate) fn block(number: u32, bytes: usize) -> NewBlock {
    let wide = u64::from(number);
    let identity = Identity {
        sequence_hash: wide.wrapping_mul(0x9E37_79B9_7F4A_7C15),
        parent: number.checked_sub(1).map(u64::from),
        local_hash: !wide,
        position: number,
    };
    NewBlock { identity, bytes, checksum: None }
}

/// The bytes of the test block with this number.
pub(crate) fn bytes(number: u32, bytes: usize) -> Vec<u8> {
    let words = (0_u32..).map(|at| at.wrapping_mul(0x9E37_79B9) ^ number.wrapping_mul(0x85EB_CA6B));
    words.flat_map(u32::to_le_bytes).take(bytes).collect()
}

/// A slot filled with the test block with this number.
pub(crate) fn filled(arena: &Arc<Arena>, slot: u32, number: u32, length: usize) -> ReadSlot {
    let mut writer = arena.write(slot).expect("a free slot");
    writer.write(0, &bytes(number, length)).expect("room");
    writer.into_read()
}

/// Whether a slot contains the test block with this number.
pub(crate) fn holds(slot: WriteSlot, number: u32, length: usize) -> bool {
    let mut found = vec![0; length];
    slot.into_read().read(0, &mut found).expect("a block");
    found == bytes(number, length)
}
