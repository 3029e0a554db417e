//! Shared memory, which engine processes map, too.
//!
//! The file begins with a header of [`HEADER_BYTES`] bytes, little-endian: magic (8 bytes), version (4), offset of the
//! first slot (4), bytes per block (8), bytes per slot (8), number of slots (8). It is written before the first page is
//! mapped, and its owner never reads it back. Python reads it with `struct.unpack_from("<8sIIQQQ", memory)`.

use crate::arena::SlotLayout;
use crate::mapping::{Mapping, check_memory};
use crate::region::{Access, AllocateError, Region, RegionKind};
use rustix::fs::{
    FallocateFlags, FlockOperation, MemfdFlags, SealFlags, fallocate, fcntl_add_seals, flock,
    memfd_create,
};
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process;

/// First bytes of a shared arena's file.
pub const MAGIC: [u8; 8] = *b"KVASIRSM";
/// Version of the header.
pub const VERSION: u32 = 1;
/// Bytes before the first slot.
pub const HEADER_BYTES: usize = 4096;

/// Where the shared memory is stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Backing {
    /// An anonymous file whose size can't be changed. Engines open it at [`SharedStorage::path`], or receive its
    /// descriptor.
    Memfd,
    /// A named file, preferably below `/dev/shm`. It is for engines that have a file system in common with the agent,
    /// but not its process namespace. Anyone who may write the file can truncate it, which kills the processes that map
    /// it. Therefore only this user gets access.
    File(PathBuf),
}

/// Memory that other processes map and may write at any time.
#[derive(Debug)]
pub struct SharedStorage {
    mapping: Mapping,
    file: File,
    layout: SlotLayout,
    /// The file to remove on drop.
    own_path: Option<PathBuf>,
}

impl SharedStorage {
    /// Creates a zeroed arena. Reserves all memory immediately, so that a full `/dev/shm` is reported here.
    ///
    /// # Errors
    /// If the layout overflows, there is not enough room, or the file belongs to another process.
    pub fn create(backing: &Backing, layout: SlotLayout) -> Result<Self, AllocateError> {
        let end = layout.bytes().ok().and_then(|bytes| bytes.checked_add(HEADER_BYTES));
        let too_large = AllocateError::TooLarge { bytes: usize::MAX, alignment: HEADER_BYTES };
        let (Some(end), false) = (end, layout.stride_bytes == 0) else { return Err(too_large) };
        check_memory(end)?;
        let (file, own_path) = match backing {
            Backing::Memfd => (memfd().map_err(|error| file_error("memfd", error))?, None),
            Backing::File(path) => (fresh_file(path)?, Some(path.clone())),
        };
        let name =
            own_path.as_deref().map_or("memfd".to_owned(), |path| path.display().to_string());
        let mapping = fill(&file, layout, end).map_err(|error| {
            own_path.as_deref().map(fs::remove_file).transpose().unwrap_or_default();
            file_error(&name, error)
        })?;
        if own_path.is_none() {
            let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
            fcntl_add_seals(&file, seals).map_err(|error| file_error(&name, error.into()))?;
        }
        Ok(Self { mapping, file, layout, own_path })
    }

    /// Maps an arena that another process created; called by engines.
    ///
    /// # Errors
    /// If the file can't be opened, or is not an arena of this version.
    pub fn open(path: &Path) -> Result<Self, AllocateError> {
        let name = path.display().to_string();
        let error = |error| file_error(&name, error);
        let file = OpenOptions::new().read(true).write(true).open(path).map_err(error)?;
        let mut header = [0; HEADER_BYTES];
        let foreign = |reason: String| AllocateError::Foreign { path: name.clone(), reason };
        let size = file.metadata().map_err(error)?.len();
        file.read_exact_at(&mut header, 0)
            .map_err(|error| foreign(format!("it is too short: {error}")))?;
        let layout = read_header(&header).map_err(foreign)?;
        let end = layout.bytes().ok().and_then(|bytes| bytes.checked_add(HEADER_BYTES));
        let fits = |end: &usize| u64::try_from(*end).is_ok_and(|end| end <= size);
        let end =
            end.filter(fits).ok_or_else(|| foreign("its slots do not fit into it".to_owned()))?;
        let mapping = Mapping::of_file(file.as_fd(), HEADER_BYTES, end).map_err(error)?;
        Ok(Self { mapping, file, layout, own_path: None })
    }

    /// The layout of the slots.
    #[must_use]
    pub fn layout(&self) -> SlotLayout {
        self.layout
    }

    /// The path that a process of the same user opens to map the memory.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        let of_process = || format!("/proc/{}/fd/{}", process::id(), self.file.as_raw_fd()).into();
        self.own_path.clone().unwrap_or_else(of_process)
    }

    /// The open file, for passing its descriptor to another process.
    #[must_use]
    pub fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl Drop for SharedStorage {
    fn drop(&mut self) {
        if let Some(path) = &self.own_path {
            // The file may be gone already, which is fine.
            drop(fs::remove_file(path));
        }
    }
}

// SAFETY: the pages are mapped while the value lives, even if it is moved; a file's bytes are initialised. Their size
// was reserved before, and a sealed memfd cannot shrink. Other processes may write them at any time, which `Shared`
// declares; this type creates no references to them.
unsafe impl Region for SharedStorage {
    fn kind(&self) -> RegionKind {
        RegionKind::Shared
    }

    fn bytes(&self) -> usize {
        self.mapping.bytes()
    }

    fn access(&self) -> Access<'_> {
        Access::Shared(self.mapping.first())
    }
}

fn file_error(path: &str, source: io::Error) -> AllocateError {
    AllocateError::File { path: path.to_owned(), source }
}

fn memfd() -> io::Result<File> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    Ok(memfd_create("kvasir-arena", flags)?.into())
}

/// Creates a file, and locks it while it is open. Removes a file that a dead owner left behind; engines that still map
/// the old file keep their mapping. Fails if a live owner has the file.
fn fresh_file(path: &Path) -> Result<File, AllocateError> {
    let name = path.display().to_string();
    let error = |error| file_error(&name, error);
    let in_use = || AllocateError::InUse { path: name.clone() };
    let lock = |file: &File| {
        flock(file, FlockOperation::NonBlockingLockExclusive).map_err(|errno| match errno {
            rustix::io::Errno::WOULDBLOCK => in_use(),
            other => error(other.into()),
        })
    };
    let mut options = OpenOptions::new();
    options.read(true).write(true).mode(0o600);
    match options.open(path) {
        Ok(left) => {
            lock(&left)?;
            // The lock is valid only if the path still refers to the locked file.
            let ours = left.metadata().map_err(error)?;
            let named = fs::metadata(path).map_err(error)?;
            if (ours.dev(), ours.ino()) != (named.dev(), named.ino()) {
                return Err(in_use());
            }
            if !is_memory(&left, named.len()) {
                let reason = "it was not made by an agent: give another path, or move it away";
                return Err(AllocateError::Foreign { path: name, reason: reason.to_owned() });
            }
            fs::remove_file(path).map_err(error)?;
        }
        Err(missing) if missing.kind() == io::ErrorKind::NotFound => {}
        Err(other) => return Err(error(other)),
    }
    let file = options.create_new(true).open(path).map_err(|failed| {
        if failed.kind() == io::ErrorKind::AlreadyExists { in_use() } else { error(failed) }
    })?;
    lock(&file)?;
    Ok(file)
}

/// Whether an agent created this file. If the agent died before it wrote the header, the file is empty or begins with
/// zeros.
fn is_memory(file: &File, bytes: u64) -> bool {
    let mut magic = [0; MAGIC.len()];
    bytes == 0
        || file.read_exact_at(&mut magic, 0).is_ok()
            && (magic == MAGIC || magic == [0; MAGIC.len()])
}

fn fill(file: &File, layout: SlotLayout, end: usize) -> io::Result<Mapping> {
    let bytes = u64::try_from(end).map_err(io::Error::other)?;
    file.set_len(bytes)?;
    fallocate(file, FallocateFlags::empty(), 0, bytes)?;
    file.write_all_at(&header(layout), 0)?;
    Mapping::of_file(file.as_fd(), HEADER_BYTES, end)
}

/// Encodes the header of a shared arena.
fn header(layout: SlotLayout) -> Vec<u8> {
    let wide = |bytes: usize| u64::try_from(bytes).unwrap_or(u64::MAX).to_le_bytes();
    let start = u32::try_from(HEADER_BYTES).unwrap_or(u32::MAX);
    [
        &MAGIC[..],
        &VERSION.to_le_bytes(),
        &start.to_le_bytes(),
        &wide(layout.block_bytes),
        &wide(layout.stride_bytes),
        &u64::from(layout.slots).to_le_bytes(),
    ]
    .concat()
}

/// Decodes the layout in the header of a shared arena. The error text states why the header is invalid.
fn read_header(header: &[u8; HEADER_BYTES]) -> Result<SlotLayout, String> {
    let (magic, rest) = header.split_first_chunk().unwrap_or((&[0; 8], &[]));
    let (version, rest) = rest.split_first_chunk().unwrap_or((&[0; 4], &[]));
    let (start, rest) = rest.split_first_chunk().unwrap_or((&[0; 4], &[]));
    let (sizes, _) = rest.as_chunks::<8>();
    if *magic != MAGIC {
        return Err("it does not begin as one".to_owned());
    }
    let version = u32::from_le_bytes(*version);
    if version != VERSION {
        return Err(format!("it has version {version}, and this is version {VERSION}"));
    }
    let start = u32::from_le_bytes(*start);
    if usize::try_from(start).ok() != Some(HEADER_BYTES) {
        return Err(format!("its slots begin at {start}, not at {HEADER_BYTES}"));
    }
    let [block, stride, slots] = [0, 1, 2].map(|at| sizes.get(at).copied().map(u64::from_le_bytes));
    let narrow = |value: Option<u64>| value.and_then(|value| usize::try_from(value).ok());
    let slots = slots.and_then(|slots| u32::try_from(slots).ok());
    match (narrow(block), narrow(stride), slots) {
        (Some(block_bytes), Some(stride_bytes), Some(slots)) => {
            Ok(SlotLayout { block_bytes, stride_bytes, slots })
        }
        _ => Err("its sizes are not possible".to_owned()),
    }
}

#[cfg(test)]
#[path = "shared_test.rs"]
mod tests;
