//! Allocates accelerator memory and pinned host memory through the CUDA driver. The driver is loaded at run time. A
//! machine without a driver gets an error that reports this.
//!
//! No test of this repository has run this on an accelerator. `tests/device.rs` uses a simulated driver that keeps
//! "device" memory in the process.

mod driver;

use crate::region::{
    Access, AccessError, AllocateError, Copies, Region, RegionKind, StorageAllocator, check,
};
use driver::{Context, DevicePointer};
use std::path::Path;
use std::ptr::NonNull;
use std::sync::Arc;

/// File name under which the driver is loaded.
pub const DRIVER: &str = "libcuda.so.1";
/// The driver's alignment of device memory, in bytes.
const DEVICE_ALIGNMENT: usize = 256;
/// The driver's alignment of pinned host memory, in bytes.
const HOST_ALIGNMENT: usize = 4096;

/// Allocates memory of one accelerator.
#[derive(Debug, Clone)]
pub struct DeviceAllocator {
    context: Arc<Context>,
}

impl DeviceAllocator {
    /// Loads the driver under its usual name, and opens the accelerator with this number.
    ///
    /// # Errors
    /// If the driver or the accelerator is missing.
    pub fn new(device: u32) -> Result<Self, AllocateError> {
        Self::with_driver(Path::new(DRIVER), device)
    }

    /// Like [`new`](Self::new), with a different file as the driver.
    ///
    /// # Errors
    /// If the driver can't be loaded, or there is no such accelerator.
    pub fn with_driver(driver: &Path, device: u32) -> Result<Self, AllocateError> {
        let context = Context::open(driver, device).map_err(AllocateError::Device)?;
        Ok(Self { context: Arc::new(context) })
    }

    /// Allocates zeroed host memory pinned by the driver. Accelerators copy from and to it at full speed.
    ///
    /// # Errors
    /// If the driver can't allocate the memory.
    pub fn pinned(&self, bytes: usize) -> Result<DriverPinnedStorage, AllocateError> {
        check(bytes, HOST_ALIGNMENT)?;
        let first = self.context.allocate_host(bytes).map_err(AllocateError::Device)?;
        Ok(DriverPinnedStorage { context: Arc::clone(&self.context), first, bytes })
    }

    /// Allocates memory of the accelerator, aligned to at most [`DEVICE_ALIGNMENT`].
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

/// Memory of an accelerator. The processor accesses it only by copies.
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
        // SAFETY: the range was checked to be in this value's own memory, which lives as long as the value.
        let outcome = unsafe { self.context.copy_out(self.first, offset, into) };
        outcome.map_err(AccessError::Device)
    }

    fn write(&self, offset: usize, from: &[u8]) -> Result<(), AccessError> {
        AccessError::check(offset, from.len(), self.bytes)?;
        // SAFETY: see `read`.
        let outcome = unsafe { self.context.copy_in(self.first, offset, from) };
        outcome.map_err(AccessError::Device)
    }
}

impl Drop for DeviceStorage {
    fn drop(&mut self) {
        // SAFETY: the memory belongs to this value, and is not used afterwards.
        unsafe { self.context.free(self.first) };
    }
}

/// Host memory pinned by the driver.
#[derive(Debug)]
pub struct DriverPinnedStorage {
    context: Arc<Context>,
    first: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the memory belongs to the process, not to a thread, and the driver frees it from any thread.
unsafe impl Send for DriverPinnedStorage {}
// SAFETY: see above; shared references only return the pointer.
unsafe impl Sync for DriverPinnedStorage {}

// SAFETY: the driver allocated this many bytes for this value alone, the context zeroed them, and they live until the
// drop.
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
        // SAFETY: the memory belongs to this value, and is not used afterwards.
        unsafe { self.context.free_host(self.first) };
    }
}
