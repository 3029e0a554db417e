//! What a region of memory is, and what allocates one.

use std::fmt::Debug;
use std::io;
use std::ptr::NonNull;

/// What kind of memory a region is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RegionKind {
    /// Memory of this process.
    System,
    /// Memory of this process that is never paged out.
    Pinned,
    /// Memory that other processes map, too.
    Shared,
    /// Memory of the accelerator with this number.
    Device(u32),
    /// What a third party plugged in.
    Foreign,
}

/// How the bytes of a region are reached.
#[derive(Debug, Clone, Copy)]
pub enum Access<'a> {
    /// By pointer, and by nobody but this process through this region.
    Private(NonNull<u8>),
    /// By pointer, while others may write at any moment: what was read once may be different when it is read again.
    Shared(NonNull<u8>),
    /// By copies only: the processor cannot address the memory.
    Copied(&'a dyn Copies),
}

/// Copies between a region that the processor cannot address and its own memory.
pub trait Copies: Debug + Send + Sync {
    /// Copies bytes of the region that begin at `offset` into `into`. Returns when they have arrived.
    ///
    /// # Errors
    /// If the range does not lie in the region, or the device fails.
    fn read(&self, offset: usize, into: &mut [u8]) -> Result<(), AccessError>;

    /// Copies `from` into the region, from `offset` on. Returns when `from` is not read any more.
    ///
    /// # Errors
    /// If the range does not lie in the region, or the device fails.
    fn write(&self, offset: usize, from: &[u8]) -> Result<(), AccessError>;
}

/// A run of bytes that an [`Arena`](crate::Arena) cuts into slots. It is released when it is dropped.
///
/// # Safety
/// For as long as the region lives, wherever the value itself is moved to:
/// - [`bytes`](Self::bytes) and [`access`](Self::access) return the same every time;
/// - a pointer in the access is valid for reads and writes of that many bytes, from any thread, and all of them are
///   initialised;
/// - with [`Access::Private`], nothing reads or writes these bytes but the arena that the region is given to: no other
///   process, no device outside of a transfer that holds a slot, no alias in this process, and no other method of the type;
/// - with [`Access::Shared`], nothing in this process makes a reference to these bytes.
pub unsafe trait Region: Debug + Send + Sync {
    /// What kind of memory it is.
    fn kind(&self) -> RegionKind;

    /// Its size in bytes.
    fn bytes(&self) -> usize;

    /// How its bytes are reached.
    fn access(&self) -> Access<'_>;
}

/// What regions come from.
pub trait StorageAllocator: Debug + Send + Sync {
    /// A region of `bytes` zeros, whose first byte has the alignment, which is a power of two.
    ///
    /// # Errors
    /// If there is no such memory.
    fn allocate(&self, bytes: usize, alignment: usize) -> Result<Box<dyn Region>, AllocateError>;
}

/// Bytes of a region could not be reached.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AccessError {
    /// The range does not lie inside.
    #[error("bytes {offset} to {offset} + {bytes} do not lie in {limit} bytes")]
    Outside {
        /// Where the range begins.
        offset: usize,
        /// How long it is.
        bytes: usize,
        /// The size of what it was to lie in.
        limit: usize,
    },
    /// The device refused or failed.
    #[error("the device failed: {0}")]
    Device(String),
}

impl AccessError {
    /// Checks that a range lies in `limit` bytes.
    ///
    /// # Errors
    /// If it does not.
    pub fn check(offset: usize, bytes: usize, limit: usize) -> Result<(), Self> {
        let end = offset.checked_add(bytes);
        end.filter(|end| *end <= limit).map(drop).ok_or(Self::Outside { offset, bytes, limit })
    }
}

/// Why memory could not be had.
#[derive(Debug, thiserror::Error)]
pub enum AllocateError {
    /// Nothing was asked for.
    #[error("a region of 0 bytes was asked for")]
    Empty,
    /// Not a power of two.
    #[error("alignment {0} is not a power of two")]
    Alignment(usize),
    /// More than an address can express.
    #[error("{bytes} bytes at alignment {alignment} are more than this machine can address")]
    TooLarge {
        /// Bytes that were asked for.
        bytes: usize,
        /// Their alignment.
        alignment: usize,
    },
    /// The kernel refused.
    #[error("the system has no {bytes} bytes of memory to give: {source}")]
    Refused {
        /// Bytes that were asked for.
        bytes: usize,
        /// What the kernel said.
        source: io::Error,
    },
    /// The limit of locked memory is too low.
    #[error(
        "cannot lock {bytes} bytes in memory, because RLIMIT_MEMLOCK is {limit}: raise it (ulimit -l, LimitMEMLOCK= of \
         systemd, --ulimit memlock= of Docker), or use system memory"
    )]
    Locked {
        /// Bytes that were asked for.
        bytes: usize,
        /// The limit, in words.
        limit: String,
    },
    /// A file of shared memory could not be used.
    #[error("{path}: {source}")]
    File {
        /// Which file.
        path: String,
        /// What went wrong.
        source: io::Error,
    },
    /// Another process owns the file of shared memory.
    #[error("{path} is in use by another process that owns it: give each agent a file of its own")]
    InUse {
        /// Which file.
        path: String,
    },
    /// A file is not an arena that this version understands.
    #[error("{path} is not a shared arena of this version: {reason}")]
    Foreign {
        /// Which file.
        path: String,
        /// What is different.
        reason: String,
    },
    /// There is no accelerator, or its driver failed.
    #[error("no device memory: {0}")]
    Device(String),
}

/// Checks what an allocator was asked for.
///
/// # Errors
/// If it is nothing, or the alignment is none.
pub(crate) fn check(bytes: usize, alignment: usize) -> Result<(), AllocateError> {
    if bytes == 0 {
        return Err(AllocateError::Empty);
    }
    if !alignment.is_power_of_two() {
        return Err(AllocateError::Alignment(alignment));
    }
    Ok(())
}
