//! Aligned buffers for direct I/O.

use crate::arena::{Arena, SlotLayout, WriteSlot};
use crate::region::{AllocateError, StorageAllocator};
use crate::system::SystemAllocator;
use std::ops::{Deref, DerefMut};

/// A buffer with an aligned first byte: the only slot of its own arena.
#[derive(Debug)]
pub struct AlignedBuffer(WriteSlot);

impl AlignedBuffer {
    /// Allocates zeroed bytes. `alignment` is a power of two.
    ///
    /// # Errors
    /// If the memory can't be allocated.
    pub fn new(bytes: usize, alignment: usize) -> Result<Self, AllocateError> {
        let region = SystemAllocator.allocate(bytes, alignment)?;
        let layout = SlotLayout { block_bytes: bytes, stride_bytes: bytes, slots: 1 };
        let arena = Arena::new(region, layout);
        let too_large = AllocateError::TooLarge { bytes, alignment };
        let Some(slot) = arena.ok().and_then(|arena| arena.write(0).ok()) else {
            return Err(too_large);
        };
        Ok(Self(slot))
    }
}

impl Deref for AlignedBuffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.0.as_slice().unwrap_or_default()
    }
}

impl DerefMut for AlignedBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        self.0.as_mut_slice().unwrap_or_default()
    }
}
