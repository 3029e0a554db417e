//! Memory regions and their allocators: the traits that storages and third parties implement.

use std::fmt::Debug;
use std::io;
use std::ptr::NonNull;

/// The kind of memory of a region.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RegionKind {
    /// Memory of this process.
    System,
    /// Memory of this process that is never paged out.
    Pinned,
    /// Memory that other processes also map.
    Shared,
    /// Memory of the accelerator with this number.
    Device(u32),
    /// Memory of a third party's implementation.
    Foreign,
}

/// How the bytes of a region are accessed.
#[derive(Debug, Clone, Copy)]
pub enum Access<'a> {
    /// By pointer. Only this process accesses the bytes, through this region.
    Private(NonNull<u8>),
    /// By pointer. Other processes may write at any time, so two reads may return different bytes.
    Shared(NonNull<u8>),
    /// Only by copies, because the processor can't address the memory.
    Copied(&'a dyn Copies),
}

/// Copies between host memory and a region that the processor can't address.
pub trait Copies: Debug + Send + Sync {
    /// Copies bytes of the region, from `offset` on, into `into`. Returns when they have arrived.
    ///
    /// # Errors
    /// If the range is outside the region, or the device fails.
    fn read(&self, offset: usize, into: &mut [u8]) -> Result<(), AccessError>;

    /// Copies `from` into the region at `offset`. Returns when `from` is no longer read.
    ///
    /// # Errors
    /// If the range is outside the region, or the device fails.
    fn write(&self, offset: usize, from: &[u8]) -> Result<(), AccessError>;
}

/// A contiguous range of bytes that an [`Arena`](crate::Arena) divides into slots. Dropping it releases the memory.
///
/// # Safety
/// While the region lives, even if the value itself is moved:
/// - [`bytes`](Self::bytes) and [`access`](Self::access) return the same every time;
/// - a pointer in the access is valid for reads and writes of that many bytes, from any thread, and all of these bytes
///   are initialised;
/// - with [`Access::Private`], only the arena that owns the region reads or writes these bytes: no other process, no
///   device outside of a transfer that claims a slot, no alias in this process, and no other method of the type;
/// - with [`Access::Shared`], this process never creates a reference to these bytes.
pub unsafe trait Region: Debug + Send + Sync {
    /// The kind of memory.
    fn kind(&self) -> RegionKind;

    /// Size in bytes.
    fn bytes(&self) -> usize;

    /// How the bytes are accessed.
    fn access(&self) -> Access<'_>;
}

/// Allocates regions of one kind of memory.
pub trait StorageAllocator: Debug + Send + Sync {
    /// Allocates a zeroed region of `bytes` bytes. `alignment` is a power of two and applies to the first byte.
    ///
    /// # Errors
    /// If the memory can't be allocated.
    fn allocate(&self, bytes: usize, alignment: usize) -> Result<Box<dyn Region>, AllocateError>;
}

/// Why bytes of a region can't be accessed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AccessError {
    /// The range is outside the memory.
    #[error("bytes {offset} to {offset} + {bytes} do not lie in {limit} bytes")]
    Outside {
        /// Start of the range.
        offset: usize,
        /// Length of the range, in bytes.
        bytes: usize,
        /// Size of the memory, in bytes.
        limit: usize,
    },
    /// The device refused or failed.
    #[error("the device failed: {0}")]
    Device(String),
}

impl AccessError {
    /// Checks that a range is within `limit` bytes.
    ///
    /// # Errors
    /// [`AccessError::Outside`] if the range ends beyond the limit.
    pub fn check(offset: usize, bytes: usize, limit: usize) -> Result<(), Self> {
        let end = offset.checked_add(bytes);
        end.filter(|end| *end <= limit).map(drop).ok_or(Self::Outside { offset, bytes, limit })
    }
}

/// Why memory can't be allocated.
#[derive(Debug, thiserror::Error)]
pub enum AllocateError {
    /// The requested size is 0.
    #[error("a region of 0 bytes was asked for")]
    Empty,
    /// The alignment is not a power of two.
    #[error("alignment {0} is not a power of two")]
    Alignment(usize),
    /// The size exceeds the address space.
    #[error("{bytes} bytes at alignment {alignment} are more than this machine can address")]
    TooLarge {
        /// Requested bytes.
        bytes: usize,
        /// Requested alignment.
        alignment: usize,
    },
    /// The kernel refused the allocation.
    #[error("the system has no {bytes} bytes of memory to give: {source}")]
    Refused {
        /// Requested bytes.
        bytes: usize,
        /// The kernel's error.
        source: io::Error,
    },
    /// The limit for locked memory is too low.
    #[error(
        "cannot lock {bytes} bytes in memory, because RLIMIT_MEMLOCK is {limit}: raise it (ulimit -l, LimitMEMLOCK= of \
         systemd, --ulimit memlock= of Docker), or use system memory"
    )]
    Locked {
        /// Requested bytes.
        bytes: usize,
        /// The limit, as text.
        limit: String,
    },
    /// A shared-memory file can't be used.
    #[error("{path}: {source}")]
    File {
        /// Path of the file.
        path: String,
        /// The error.
        source: io::Error,
    },
    /// Another process owns the shared-memory file.
    #[error("{path} is in use by another process that owns it: give each agent a file of its own")]
    InUse {
        /// Path of the file.
        path: String,
    },
    /// The file is not a shared arena of this version.
    #[error("{path} is not a shared arena of this version: {reason}")]
    Foreign {
        /// Path of the file.
        path: String,
        /// The difference.
        reason: String,
    },
    /// There is no accelerator, or its driver failed.
    #[error("no device memory: {0}")]
    Device(String),
}

/// Checks the parameters of an allocation.
///
/// # Errors
/// If the size is 0, or the alignment is not a power of two.
pub(crate) fn check(bytes: usize, alignment: usize) -> Result<(), AllocateError> {
    if bytes == 0 {
        return Err(AllocateError::Empty);
    }
    if !alignment.is_power_of_two() {
        return Err(AllocateError::Alignment(alignment));
    }
    Ok(())
}
