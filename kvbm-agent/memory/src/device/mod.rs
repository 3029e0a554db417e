//! Memory of an accelerator, and host memory that its driver locks, by the CUDA driver's own interface. The driver is found
//! at run time: a machine without one gets an error that says so.
//!
//! No test of this repository has run this on an accelerator. `tests/device.rs` runs it against a driver made for it, which
//! keeps "device" memory in the process.

mod driver;

use crate::region::{
    Access, AccessError, AllocateError, Copies, Region, RegionKind, StorageAllocator, check,
};
use driver::{Context, DevicePointer};
use std::path::Path;
use std::ptr::NonNull;
use std::sync::Arc;

/// The name under which the driver is found.
pub const DRIVER: &str = "libcuda.so.1";
/// What the driver aligns device memory to, in bytes.
const DEVICE_ALIGNMENT: usize = 256;
/// What the driver aligns locked host memory to, in bytes.
const HOST_ALIGNMENT: usize = 4096;

/// Allocates memory of one accelerator.
#[derive(Debug, Clone)]
pub struct DeviceAllocator {
    context: Arc<Context>,
}

impl DeviceAllocator {
    /// Finds the driver under its usual name, and the accelerator with this number.
    ///
    /// # Errors
    /// If there is no driver, or no such accelerator.
    pub fn new(device: u32) -> Result<Self, AllocateError> {
        Self::with_driver(Path::new(DRIVER), device)
    }

    /// Like [`new`](Self::new), with another file as the driver.
    ///
    /// # Errors
    /// If it cannot be loaded, or there is no such accelerator.
    pub fn with_driver(driver: &Path, device: u32) -> Result<Self, AllocateError> {
        let context = Context::open(driver, device).map_err(AllocateError::Device)?;
        Ok(Self { context: Arc::new(context) })
    }

    /// Host memory of zeros that the driver locks, which accelerators copy from and to at full speed.
    ///
    /// # Errors
    /// If the driver has no such memory.
    pub fn pinned(&self, bytes: usize) -> Result<DriverPinnedStorage, AllocateError> {
        check(bytes, HOST_ALIGNMENT)?;
        let first = self.context.allocate_host(bytes).map_err(AllocateError::Device)?;
        Ok(DriverPinnedStorage { context: Arc::clone(&self.context), first, bytes })
    }

    fn device(&self, bytes: usize, alignment: usize) -> Result<DeviceStorage, AllocateError> {
        check(bytes, alignment)?;
        if alignment > DEVICE_ALIGNMENT {
            return Err(AllocateError::Device(format!(
                "memory of an accelerator is aligned to {DEVICE_ALIGNMENT} bytes, not to {alignment}"
            )));
        }
        let first = self.context.allocate(bytes).map_err(AllocateError::Device)?;
        Ok(DeviceStorage { context: Arc::clone(&self.context), first, bytes })
    }
}

impl StorageAllocator for DeviceAllocator {
    fn allocate(&self, bytes: usize, alignment: usize) -> Result<Box<dyn Region>, AllocateError> {
        Ok(Box::new(self.device(bytes, alignment)?))
    }
}

/// Memory of an accelerator. The processor reaches it by copies.
#[derive(Debug)]
pub struct DeviceStorage {
    context: Arc<Context>,
    first: DevicePointer,
    bytes: usize,
}

// SAFETY: the access has no pointer; size and access never change.
unsafe impl Region for DeviceStorage {
    fn kind(&self) -> RegionKind {
        RegionKind::Device(self.context.device())
    }

    fn bytes(&self) -> usize {
        self.bytes
    }

    fn access(&self) -> Access<'_> {
        Access::Copied(self)
    }
}

impl Copies for DeviceStorage {
    fn read(&self, offset: usize, into: &mut [u8]) -> Result<(), AccessError> {
        AccessError::check(offset, into.len(), self.bytes)?;
        // SAFETY: the range was checked to lie in this value's own memory, which lives as long as it.
        let outcome = unsafe { self.context.copy_out(self.first, offset, into) };
        outcome.map_err(AccessError::Device)
    }

    fn write(&self, offset: usize, from: &[u8]) -> Result<(), AccessError> {
        AccessError::check(offset, from.len(), self.bytes)?;
        // SAFETY: as for `read`.
        let outcome = unsafe { self.context.copy_in(self.first, offset, from) };
        outcome.map_err(AccessError::Device)
    }
}

impl Drop for DeviceStorage {
    fn drop(&mut self) {
        // SAFETY: the memory is this value's own, and is used by nothing after it.
        unsafe { self.context.free(self.first) };
    }
}

/// Host memory that the driver locked.
#[derive(Debug)]
pub struct DriverPinnedStorage {
    context: Arc<Context>,
    first: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the memory belongs to the process, not to a thread, and the driver frees it from any thread.
unsafe impl Send for DriverPinnedStorage {}
// SAFETY: see above; shared references give the pointer out and do nothing else.
unsafe impl Sync for DriverPinnedStorage {}

// SAFETY: the driver allocated so many bytes for this value alone, the context zeroed them, and they live until it is dropped.
unsafe impl Region for DriverPinnedStorage {
    fn kind(&self) -> RegionKind {
        RegionKind::Pinned
    }

    fn bytes(&self) -> usize {
        self.bytes
    }

    fn access(&self) -> Access<'_> {
        Access::Private(self.first)
    }
}

impl Drop for DriverPinnedStorage {
    fn drop(&mut self) {
        // SAFETY: the memory is this value's own, and is used by nothing after it.
        unsafe { self.context.free_host(self.first) };
    }
}
