//! Ordinary memory of this process.

use crate::mapping::Mapping;
use crate::region::{Access, AllocateError, Region, RegionKind, StorageAllocator};

/// Zeroed, aligned pages of this process. They use physical memory only after they were written.
#[derive(Debug)]
pub struct SystemStorage(Mapping);

impl SystemStorage {
    /// Allocates a zeroed region. `alignment` is a power of two.
    ///
    /// # Errors
    /// If the system can't allocate the memory.
    pub fn new(bytes: usize, alignment: usize) -> Result<Self, AllocateError> {
        Ok(Self(Mapping::anonymous(bytes, alignment)?))
    }
}

// SAFETY: the pages are mapped while the value lives, even if it is moved. The kernel initialises them. They are
// private to this process, and no other method of this type exposes them.
unsafe impl Region for SystemStorage {
    fn kind(&self) -> RegionKind {
        RegionKind::System
    }

    fn bytes(&self) -> usize {
        self.0.bytes()
    }

    fn access(&self) -> Access<'_> {
        Access::Private(self.0.first())
    }
}

/// Allocates [`SystemStorage`].
#[derive(Debug, Clone, Copy)]
pub struct SystemAllocator;

impl StorageAllocator for SystemAllocator {
    fn allocate(&self, bytes: usize, alignment: usize) -> Result<Box<dyn Region>, AllocateError> {
        Ok(Box::new(SystemStorage::new(bytes, alignment)?))
    }
}

#[cfg(test)]
#[path = "system_test.rs"]
mod tests;
