//! Byte-level access to the files, which tests replace to inject faults.

use super::format::PAGE_BYTES;
use crate::error::TransferError;
use std::fmt::Debug;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// Positional reads and writes. Like system calls, they may be incomplete.
pub trait Medium: Debug + Send + Sync {
    /// Reads at most `into.len()` bytes.
    ///
    /// # Errors
    /// Same errors as the system call.
    fn read_at(&self, into: &mut [u8], offset: u64) -> io::Result<usize>;

    /// Writes at most `from.len()` bytes.
    ///
    /// # Errors
    /// Same errors as the system call.
    fn write_at(&self, from: &[u8], offset: u64) -> io::Result<usize>;
}

impl Medium for File {
    fn read_at(&self, into: &mut [u8], offset: u64) -> io::Result<usize> {
        FileExt::read_at(self, into, offset)
    }

    fn write_at(&self, from: &[u8], offset: u64) -> io::Result<usize> {
        FileExt::write_at(self, from, offset)
    }
}

/// Maximum consecutive calls without progress, because they are interrupted or move less than a page.
const STALLS_MAX: usize = 100;

/// Repeats `call` until `wanted` bytes are moved, because a call may be incomplete or interrupted. After an incomplete
/// call, resumes at a page boundary, as direct I/O requires: bytes moved twice are identical. Fails if the file ends,
/// or after too many incomplete calls.
fn complete(
    wanted: usize,
    mut call: impl FnMut(usize) -> io::Result<usize>,
) -> Result<(), TransferError> {
    let mut done = 0;
    let mut stalls = 0;
    loop {
        let (moved, is_over) = match call(done) {
            Ok(moved) => (moved, moved == 0),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => (0, false),
            Err(error) => return Err(error.into()),
        };
        let now = done + moved;
        if now >= wanted {
            return Ok(());
        }
        if is_over || stalls == STALLS_MAX {
            return Err(TransferError::Short { done: now, wanted });
        }
        let whole = now - now % PAGE_BYTES;
        stalls = if whole > done { 0 } else { stalls + 1 };
        done = whole;
    }
}

fn after(offset: u64, done: usize) -> u64 {
    offset.saturating_add(u64::try_from(done).unwrap_or(u64::MAX))
}

/// Reads until `into` is full.
///
/// # Errors
/// If the file ends too early, or reading fails.
pub(super) fn read_exact(
    medium: &dyn Medium,
    into: &mut [u8],
    offset: u64,
) -> Result<(), TransferError> {
    complete(into.len(), |done| {
        medium.read_at(into.get_mut(done..).unwrap_or_default(), after(offset, done))
    })
}

/// Writes all of `from`.
///
/// # Errors
/// If the disk is full, or writing fails.
pub(super) fn write_all(
    medium: &dyn Medium,
    from: &[u8],
    offset: u64,
) -> Result<(), TransferError> {
    complete(from.len(), |done| {
        medium.write_at(from.get(done..).unwrap_or_default(), after(offset, done))
    })
}

#[cfg(test)]
#[path = "medium_test.rs"]
mod tests;
