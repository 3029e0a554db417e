//! Memory of this process that is never paged out.

use crate::mapping::Mapping;
use crate::region::{Access, AllocateError, Region, RegionKind, StorageAllocator};

/// Pages of this process that are locked in memory, so that reading them never waits for a disk. A device's own page-locked
/// memory, which it copies from and to faster, is `DeviceAllocator::pinned`.
#[derive(Debug)]
pub struct PinnedStorage(Mapping);

impl PinnedStorage {
    /// A locked region of zeros whose first byte has the alignment, which is a power of two.
    ///
    /// # Errors
    /// If the system has no such memory, or `RLIMIT_MEMLOCK` does not allow to lock it.
    pub fn new(bytes: usize, alignment: usize) -> Result<Self, AllocateError> {
        let mapping = Mapping::anonymous(bytes, alignment)?;
        mapping.lock()?;
        Ok(Self(mapping))
    }
}

// SAFETY: as for `SystemStorage`; that pages are locked changes nothing about who reaches them.
unsafe impl Region for PinnedStorage {
    fn kind(&self) -> RegionKind {
        RegionKind::Pinned
    }

    fn bytes(&self) -> usize {
        self.0.bytes()
    }

    fn access(&self) -> Access<'_> {
        Access::Private(self.0.first())
    }
}

/// Allocates [`PinnedStorage`].
#[derive(Debug, Clone, Copy)]
pub struct PinnedAllocator;

impl StorageAllocator for PinnedAllocator {
    fn allocate(&self, bytes: usize, alignment: usize) -> Result<Box<dyn Region>, AllocateError> {
        Ok(Box::new(PinnedStorage::new(bytes, alignment)?))
    }
}
