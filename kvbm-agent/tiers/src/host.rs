//! Host memory as a storage.

use crate::block::{NewBlock, Sealed};
use crate::cancel::Cancel;
use crate::error::TransferError;
use crate::storage::{Place, Storage, StorageKind, check_loaded, check_size, copy_summed, sealed};
use kvasir_memory::{Arena, ReadSlot, WriteSlot};
use std::sync::Arc;

/// Slots of host memory. Blocks are lost when the process ends.
#[derive(Debug, Clone)]
pub struct HostStorage {
    arena: Arc<Arena>,
}

impl HostStorage {
    /// Creates a storage of an arena's slots.
    #[must_use]
    pub fn new(arena: Arc<Arena>) -> Self {
        Self { arena }
    }

    /// The arena, which transfers into other tiers read.
    #[must_use]
    pub fn arena(&self) -> &Arc<Arena> {
        &self.arena
    }
}

impl Storage for HostStorage {
    fn kind(&self) -> StorageKind {
        StorageKind::Host
    }

    fn block_bytes(&self) -> usize {
        self.arena.layout().block_bytes
    }

    fn slots(&self) -> Option<u32> {
        Some(self.arena.layout().slots)
    }

    fn store(
        &self,
        place: Place,
        block: &NewBlock,
        source: &ReadSlot,
        cancel: &Cancel,
    ) -> Result<Sealed, TransferError> {
        check_size(block.bytes, self.block_bytes())?;
        let mut target = self.arena.write(place.slot()?)?;
        let summing = copy_summed(source, &mut target, block.bytes, cancel)?;
        sealed(block, summing.seal(block.identity.sequence_hash))
    }

    fn load(
        &self,
        place: Place,
        block: &Sealed,
        target: &mut WriteSlot,
        cancel: &Cancel,
    ) -> Result<(), TransferError> {
        check_size(block.bytes, self.block_bytes())?;
        let source = self.arena.read(place.slot()?)?;
        let summing = copy_summed(&source, target, block.bytes, cancel)?;
        check_loaded(block, summing.seal(block.identity.sequence_hash))
    }

    fn erase(&self, place: Place, _: u64, _: &Cancel) -> Result<(), TransferError> {
        // Blocks are lost with the process anyway. The claim only reports an error if the slot is still being read.
        self.arena.write(place.slot()?).map(drop)?;
        Ok(())
    }
}

#[cfg(test)]
#[path = "host_test.rs"]
mod tests;
