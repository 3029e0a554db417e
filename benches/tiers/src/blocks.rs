//! Memory and counts for the blocks that a measurement moves.

use anyhow::Result;
use kvasir_memory::{Arena, ReadSlot, SlotLayout, StorageAllocator, SystemAllocator};
use kvasir_tiers::{Identity, NewBlock};
use std::sync::Arc;
use tokio::time::Instant;

/// Memory whose pages are already allocated.
pub fn arena(block_bytes: usize, slots: u32) -> Result<Arc<Arena>> {
    let layout = SlotLayout::aligned(block_bytes, 4096, slots)?;
    let arena = Arena::new(SystemAllocator.allocate(layout.bytes()?, 4096)?, layout)?;
    for slot in 0..slots {
        if let Some(block) = arena.write(slot)?.as_mut_slice() {
            let words = block.chunks_exact_mut(4).zip(0_u32..);
            words.for_each(|(word, at)| word.copy_from_slice(&(at ^ slot).to_le_bytes()));
        }
    }
    Ok(arena)
}

pub fn block(number: u32, bytes: usize) -> NewBlock {
    let identity = Identity {
        sequence_hash: u64::from(number) + 1,
        parent: None,
        local_hash: u64::from(number),
        position: number,
    };
    NewBlock { identity, bytes, checksum: None }
}

pub fn readers(arena: &Arc<Arena>) -> Result<Vec<ReadSlot>> {
    Ok((0..arena.layout().slots).map(|slot| arena.read(slot)).collect::<Result<_, _>>()?)
}

/// Number of blocks in `mib` MiB.
pub fn count(mib: usize, block_bytes: usize) -> Result<u32> {
    Ok(u32::try_from(((mib << 20) / block_bytes).max(1))?)
}

/// Runs `body` and returns its speed in bytes per second.
pub fn speed(bytes: usize, body: impl FnOnce() -> Result<()>) -> Result<f64> {
    let start = Instant::now();
    body()?;
    Ok(bytes as f64 / start.elapsed().as_secs_f64())
}
