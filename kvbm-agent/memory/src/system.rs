//! Memory of this process.

use crate::mapping::Mapping;
use crate::region::{Access, AllocateError, Region, RegionKind, StorageAllocator};

/// Pages of this process, zeroed, aligned as asked for. They take memory once they are written.
#[derive(Debug)]
pub struct SystemStorage(Mapping);

impl SystemStorage {
    /// A region of zeros whose first byte has the alignment, which is a power of two.
    ///
    /// # Errors
    /// If the system has no such memory.
    pub fn new(bytes: usize, alignment: usize) -> Result<Self, AllocateError> {
        Ok(Self(Mapping::anonymous(bytes, alignment)?))
    }
}

// SAFETY: the pages are mapped for as long as the value lives and wherever it moves; they are initialised by the kernel; they
// are private to this process, and this type has no other method that leads to them.
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
