//! Memory-mapped pages (`mmap`), unmapped on drop.

use crate::region::{AllocateError, check};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mlock, mmap, mmap_anonymous, munmap};
use rustix::param::page_size;
use rustix::process::{Resource, getrlimit};
use rustix::system::sysinfo;
use std::ffi::c_void;
use std::io;
use std::os::fd::BorrowedFd;
use std::ptr::{NonNull, null_mut};

/// Minimum size for which huge pages are requested from the kernel.
const HUGE_PAGES_BYTES_MIN: usize = 4 << 20;

/// Mapped pages, and an aligned range of bytes within the pages.
#[derive(Debug)]
pub(crate) struct Mapping {
    /// Start of the mapping.
    pages: NonNull<c_void>,
    pages_bytes: usize,
    /// The first used byte.
    first: NonNull<u8>,
    bytes: usize,
}

// SAFETY: a mapping belongs to the process, not to a thread: its pages may be used and unmapped from any thread. The
// type itself never accesses memory through the pointer.
unsafe impl Send for Mapping {}
// SAFETY: see above; shared references only return the pointer.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps zeroed memory that is private to this process.
    pub(crate) fn anonymous(bytes: usize, alignment: usize) -> Result<Self, AllocateError> {
        check(bytes, alignment)?;
        let too_large = AllocateError::TooLarge { bytes, alignment };
        // The kernel aligns to a page. A larger alignment needs extra room.
        let room = if alignment > page_size() { alignment } else { 0 };
        let Some(pages_bytes) = bytes.checked_add(room).filter(|at| isize::try_from(*at).is_ok())
        else {
            return Err(too_large);
        };
        // SAFETY: the kernel chooses the address, so no existing mapping is replaced.
        let pages = unsafe {
            mmap_anonymous(
                null_mut(),
                pages_bytes,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE | MapFlags::NORESERVE,
            )
        };
        let refused = |source: io::Error| AllocateError::Refused { bytes, source };
        let pages = NonNull::new(pages.map_err(|error| refused(error.into()))?)
            .ok_or_else(|| refused(io::ErrorKind::OutOfMemory.into()))?;
        let start: NonNull<u8> = pages.cast();
        let padding = start.as_ptr().align_offset(alignment);
        // `align_offset` may fail in theory; then the drop unmaps the pages.
        let padding_fits = padding <= room;
        let at = if padding_fits { padding } else { 0 };
        // SAFETY: `at` is at most `room`, so the sum is in the pages.
        let first = unsafe { start.add(at) };
        let mapping = Self { pages, pages_bytes, first, bytes };
        if !padding_fits {
            return Err(too_large);
        }
        if bytes >= HUGE_PAGES_BYTES_MIN {
            // Huge pages make copies faster. A kernel without huge pages refuses the advice, which is harmless.
            // SAFETY: the range is this mapping, and this advice does not change the bytes.
            let advised = unsafe { madvise(pages.as_ptr(), pages_bytes, Advice::LinuxHugepage) };
            advised.unwrap_or_default();
        }
        Ok(mapping)
    }

    /// Maps a file up to `end`, shared with other processes, and returns the bytes from `skip` to `end`. The file must
    /// have at least `end` bytes.
    pub(crate) fn of_file(file: BorrowedFd<'_>, skip: usize, end: usize) -> io::Result<Self> {
        let bytes = end.checked_sub(skip).ok_or(io::ErrorKind::InvalidInput)?;
        // SAFETY: the kernel chooses the address, so no existing mapping is replaced.
        let pages = unsafe {
            mmap(null_mut(), end, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED, file, 0)?
        };
        let pages = NonNull::new(pages).ok_or(io::ErrorKind::OutOfMemory)?;
        // SAFETY: `skip` is at most `end`, and `end` bytes are mapped.
        let first = unsafe { pages.cast::<u8>().add(skip) };
        Ok(Self { pages, pages_bytes: end, first, bytes })
    }

    /// Locks the mapping's pages in memory, so that they are never swapped. Fails above the process's limit of locked
    /// memory.
    pub(crate) fn lock(&self) -> Result<(), AllocateError> {
        let bytes = self.pages_bytes;
        check_memory(bytes)?;
        // SAFETY: the range is this mapping; locking does not change the bytes.
        let outcome = unsafe { mlock(self.pages.as_ptr(), self.pages_bytes) };
        outcome.map_err(|error| {
            let limit = getrlimit(Resource::Memlock).current;
            let is_limit =
                limit.is_some_and(|limit| u64::try_from(bytes).unwrap_or(u64::MAX) > limit);
            match limit {
                Some(limit) if is_limit || error == rustix::io::Errno::PERM => {
                    AllocateError::Locked { bytes, limit: format!("{limit} bytes") }
                }
                _ => AllocateError::Refused { bytes, source: error.into() },
            }
        })
    }

    pub(crate) fn first(&self) -> NonNull<u8> {
        self.first
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }
}

/// Refuses sizes beyond the machine's memory. Otherwise the kernel would hand out pages one by one until it kills a
/// process.
pub(crate) fn check_memory(bytes: usize) -> Result<(), AllocateError> {
    let info = sysinfo();
    let memory = u128::from(info.totalram) * u128::from(info.mem_unit.max(1));
    if u128::try_from(bytes).is_ok_and(|bytes| bytes > memory) {
        return Err(AllocateError::Refused { bytes, source: io::ErrorKind::OutOfMemory.into() });
    }
    Ok(())
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the pages belong to this value, and every user of the pointer borrows or owns the value.
        let outcome = unsafe { munmap(self.pages.as_ptr(), self.pages_bytes) };
        debug_assert!(outcome.is_ok(), "pages that cannot be unmapped: {outcome:?}");
    }
}
