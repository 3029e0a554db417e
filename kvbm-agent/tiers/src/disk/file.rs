//! Opens the files of a disk tier: exclusive, preallocated, with direct I/O if the file system supports it.

use super::error::DiskError;
use super::format::PAGE_BYTES;
use kvasir_memory::AlignedBuffer;
use rustix::fs::{FallocateFlags, FlockOperation, OFlags, fallocate, flock};
use rustix::io::Errno;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// How data is written to the disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Way {
    /// Direct I/O, bypassing the page cache.
    Direct,
    /// Through the page cache, because direct I/O was refused or disabled.
    Buffered {
        /// Why direct I/O is not used.
        reason: String,
    },
}

pub(super) fn io_error(path: &Path, what: &'static str) -> impl Fn(io::Error) -> DiskError {
    let path = path.to_path_buf();
    move |source| DiskError::Io { path: path.clone(), what, source }
}

/// Opens or creates the file, locked for this process while it is open.
pub(super) fn open_locked(path: &Path) -> Result<File, DiskError> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false).mode(0o600);
    let file = options.open(path).map_err(io_error(path, "cannot open it"))?;
    lock(&file, path)?;
    Ok(file)
}

fn lock(file: &File, path: &Path) -> Result<(), DiskError> {
    flock(file, FlockOperation::NonBlockingLockExclusive).map_err(|errno| match errno {
        Errno::WOULDBLOCK => DiskError::InUse { path: path.to_path_buf() },
        other => io_error(path, "cannot lock it")(other.into()),
    })
}

/// Suffix of the table's file name.
const TABLE: &str = ".kvasir-table";

/// Opens or creates the table of the file at `path`, with `bytes` bytes. Empties an existing table if the file is new
/// (`is_new`). Fails if a process has the table open.
pub(super) fn open_table(path: &Path, bytes: u64, is_new: bool) -> Result<File, DiskError> {
    let mut name = path.as_os_str().to_owned();
    name.push(TABLE);
    let path = PathBuf::from(name);
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false).mode(0o600);
    let file = options.open(&path).map_err(io_error(&path, "cannot open it"))?;
    lock(&file, &path)?;
    if is_new {
        file.set_len(0).map_err(io_error(&path, "cannot empty it"))?;
    }
    file.set_len(bytes).map_err(io_error(&path, "cannot set its size"))?;
    reserve(&file, &path, bytes)?;
    Ok(file)
}

/// Preallocates the file. Returns true if the file system supports preallocation. Otherwise only sets the file's size,
/// returns false, and room is taken as blocks are written.
pub(super) fn reserve(file: &File, path: &Path, bytes: u64) -> Result<bool, DiskError> {
    match fallocate(file, FallocateFlags::empty(), 0, bytes) {
        Ok(()) => Ok(true),
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => {
            file.set_len(bytes).map_err(io_error(path, "cannot set its size"))?;
            Ok(false)
        }
        Err(errno @ (Errno::NOSPC | Errno::DQUOT | Errno::FBIG)) => {
            let path = PathBuf::from(path);
            let source = errno.into();
            Err(DiskError::Full { path, bytes, source })
        }
        Err(errno) => Err(io_error(path, "cannot reserve its room")(errno.into())),
    }
}

/// Opens the file a second time for direct I/O, and tests it by reading a page and writing it back. Returns no file,
/// and the reason in `Way::Buffered`, if the test fails.
pub(super) fn direct(path: &Path) -> Result<(Option<File>, Way), DiskError> {
    let mut page = AlignedBuffer::new(PAGE_BYTES, PAGE_BYTES)
        .map_err(|error| DiskError::Memory(error.to_string()))?;
    let mut attempt = || -> io::Result<File> {
        let flags = i32::try_from(OFlags::DIRECT.bits()).map_err(io::Error::other)?;
        let file = OpenOptions::new().read(true).write(true).custom_flags(flags).open(path)?;
        // The header exists, and remains unchanged.
        file.read_exact_at(&mut page, 0)?;
        file.write_all_at(&page, 0)?;
        Ok(file)
    };
    match attempt() {
        Ok(file) => Ok((Some(file), Way::Direct)),
        Err(error) => Ok((None, Way::Buffered { reason: error.to_string() })),
    }
}
