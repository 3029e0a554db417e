//! Memory of this process that is never paged out (`mlock`).

use crate::mapping::Mapping;
use crate::region::{Access, AllocateError, Region, RegionKind, StorageAllocator};

/// Pages of this process that are locked in memory, so that reading them never waits for a disk.
/// `DeviceAllocator::pinned` allocates a device's own page-locked memory, which the device copies faster.
#[derive(Debug)]
pub struct PinnedStorage(Mapping);

impl PinnedStorage {
    /// Allocates a locked, zeroed region. `alignment` is a power of two.
    ///
    /// # Errors
    /// If the system can't allocate the memory, or `RLIMIT_MEMLOCK` does not allow locking it.
    pub fn new(bytes: usize, alignment: usize) -> Result<Self, AllocateError> {
        let mapping = Mapping::anonymous(bytes, alignment)?;
        mapping.lock()?;
        Ok(Self(mapping))
    }
}

// SAFETY: see `SystemStorage`; locking the pages does not change who can access them.
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
