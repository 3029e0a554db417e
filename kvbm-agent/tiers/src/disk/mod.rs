//! Disk tier: stores blocks in the slots of one preallocated file, with a table of records in a small second file.
//!
//! Storing a block first erases the slot's old record, then writes the data, and the new record last. A process may
//! therefore be killed at any time: every valid record has all of its data. After a power failure, a record may be on
//! the disk without its data. The checksum, which is verified on every load, detects this.

mod error;
mod file;
mod format;
mod medium;
mod recover;

use crate::block::{Fingerprint, NewBlock, Sealed};
use crate::cancel::Cancel;
use crate::checksum::Summing;
use crate::error::TransferError;
use crate::storage::{Place, Storage, StorageKind, check_loaded, check_size, sealed};
pub use error::DiskError;
pub use file::Way;
use format::{Geometry, PAGE_BYTES, RECORD_BYTES, Record, record_offset};
use kvasir_memory::{AlignedBuffer, Claims, ReadSlot, WriteSlot};
pub use medium::Medium;
use medium::{read_exact, write_all};
use parking_lot::Mutex;
pub use recover::Recovered;
use std::fs::File;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Bytes that are checksummed between two checks for cancellation.
const PIECE_BYTES: usize = 64 << 10;
/// Maximum cached buffers, for blocks in memory that direct I/O can't use.
const BUFFERS_MAX: usize = 16;

/// Configuration of a disk tier.
#[derive(Debug, Clone)]
pub struct DiskConfig {
    /// The file. It and its table, `PATH.kvasir-table`, are created if missing.
    pub path: PathBuf,
    /// Maximum bytes of a block.
    pub block_bytes: usize,
    /// Number of slots.
    pub slots: u32,
    /// Fingerprint of the meaning of the blocks' bytes.
    pub fingerprint: Fingerprint,
    /// Readable form of the fingerprint, for errors.
    pub description: String,
    /// Whether to use direct I/O, if the file system allows it.
    pub direct: bool,
}

/// An open disk tier.
#[derive(Debug)]
pub struct DiskStorage {
    geometry: Geometry,
    file_id: u64,
    /// Holds the lock on the file.
    _lock: File,
    /// The table of records.
    table: Box<dyn Medium>,
    /// The data of the slots.
    data: Box<dyn Medium>,
    way: Way,
    is_preallocated: bool,
    claims: Arc<Claims>,
    /// Whether each slot may have a record on the disk.
    recorded: Box<[AtomicBool]>,
    next_write: AtomicU64,
    buffers: Mutex<Vec<AlignedBuffer>>,
}

/// A newly opened disk tier and the blocks found in it.
#[derive(Debug)]
pub struct Opened {
    /// The opened tier.
    pub storage: DiskStorage,
    /// The blocks found, in the order of writing, at most one per sequence hash.
    pub blocks: Vec<Recovered>,
    /// Damaged records, which were erased.
    pub damaged_records: u32,
    /// Erased records of blocks that were written again later.
    pub superseded_records: u32,
}

impl DiskStorage {
    /// Opens or creates the file. `file_id` is a random number that distinguishes a new file from earlier ones at the
    /// same path.
    ///
    /// # Errors
    /// If another process has opened the file, it has different content, or there is no room.
    pub fn open(config: &DiskConfig, file_id: u64) -> Result<Opened, DiskError> {
        Self::open_through(config, file_id, |file| Box::new(file))
    }

    /// Like [`open`](Self::open), but wraps both files: calls `through` once for the table and once for the data.
    ///
    /// # Errors
    /// Same errors as [`open`](Self::open).
    pub fn open_through(
        config: &DiskConfig,
        file_id: u64,
        through: impl Fn(File) -> Box<dyn Medium>,
    ) -> Result<Opened, DiskError> {
        recover::open_storage(config, file_id, through)
    }

    /// How data is written to the disk.
    #[must_use]
    pub fn way(&self) -> &Way {
        &self.way
    }

    /// Whether the file is preallocated, so that storing a block never finds the disk full.
    #[must_use]
    pub fn is_preallocated(&self) -> bool {
        self.is_preallocated
    }

    /// Size of the file, in bytes.
    #[must_use]
    pub fn file_bytes(&self) -> u64 {
        self.geometry.file_bytes
    }

    /// Offset of a slot's data in the file.
    #[must_use]
    pub fn slot_offset(&self, slot: u32) -> u64 {
        self.geometry.slot_offset(slot)
    }

    fn is_recorded(&self, slot: u32) -> Option<&AtomicBool> {
        usize::try_from(slot).ok().and_then(|slot| self.recorded.get(slot))
    }

    /// Overwrites the record of a slot with zeros. Returns immediately if the slot has none.
    fn erase_record(&self, slot: u32) -> Result<(), TransferError> {
        let Some(recorded) = self.is_recorded(slot) else { return Ok(()) };
        if recorded.load(Ordering::Acquire) {
            let offset = record_offset(slot);
            write_all(&*self.table, &[0; RECORD_BYTES], offset)?;
            recorded.store(false, Ordering::Release);
        }
        Ok(())
    }

    /// Writes the record of a slot under the next write number.
    fn write_record(&self, slot: u32, block: Sealed) -> Result<(), TransferError> {
        let write_number = self.next_write.fetch_add(1, Ordering::Relaxed);
        let record = Record { block, write_number }.encode(self.file_id, slot);
        // From now on the record may exist, even if writing it fails.
        if let Some(recorded) = self.is_recorded(slot) {
            recorded.store(true, Ordering::Release);
        }
        write_all(&*self.table, &record, record_offset(slot))
    }

    /// Calls `body` with a buffer that is aligned for direct I/O, from a pool of at most [`BUFFERS_MAX`] buffers.
    fn with_buffer<T>(
        &self,
        body: impl FnOnce(&mut [u8]) -> Result<T, TransferError>,
    ) -> Result<T, TransferError> {
        let kept = self.buffers.lock().pop();
        let mut buffer = match kept {
            Some(buffer) => buffer,
            None => AlignedBuffer::new(self.geometry.stride_bytes, PAGE_BYTES)?,
        };
        let outcome = body(&mut buffer);
        let mut kept = self.buffers.lock();
        if kept.len() < BUFFERS_MAX {
            kept.push(buffer);
        }
        outcome
    }

    /// Writes a block into the data file. Returns the block with its checksum, which is computed in memory before the
    /// write.
    fn write_data(
        &self,
        slot: u32,
        block: &NewBlock,
        source: &ReadSlot,
        cancel: &Cancel,
    ) -> Result<Sealed, TransferError> {
        let length = block.bytes.next_multiple_of(PAGE_BYTES);
        let offset = self.geometry.slot_offset(slot);
        let write = |bytes: &[u8]| {
            let found = sum(bytes.get(..block.bytes).unwrap_or_default(), cancel)?;
            let block = sealed(block, found.seal(block.identity.sequence_hash))?;
            write_all(&*self.data, bytes, offset)?;
            Ok(block)
        };
        if let Some(bytes) = source.padded().and_then(|bytes| usable(bytes.get(..length)?)) {
            return write(bytes);
        }
        self.with_buffer(|buffer| {
            let (own, padding) = buffer.split_at_mut_checked(block.bytes).unwrap_or_default();
            source.read(0, own)?;
            padding.fill(0);
            write(buffer.get(..length).unwrap_or_default())
        })
    }

    /// Reads a block from the data file into `target`, and verifies its checksum there.
    fn read_data(
        &self,
        slot: u32,
        block: &Sealed,
        target: &mut WriteSlot,
        cancel: &Cancel,
    ) -> Result<(), TransferError> {
        let length = block.bytes.next_multiple_of(PAGE_BYTES);
        let offset = self.geometry.slot_offset(slot);
        let read = |bytes: &mut [u8]| {
            read_exact(&*self.data, bytes, offset)?;
            let found = sum(bytes.get(..block.bytes).unwrap_or_default(), cancel)?;
            check_loaded(block, found.seal(block.identity.sequence_hash))
        };
        let padded = target.padded_mut().and_then(|bytes| bytes.get_mut(..length));
        if let Some(bytes) = padded.filter(|bytes| usable(bytes).is_some()) {
            return read(bytes);
        }
        self.with_buffer(|buffer| {
            read(buffer.get_mut(..length).unwrap_or_default())?;
            target.write(0, buffer.get(..block.bytes).unwrap_or_default())?;
            Ok(())
        })
    }
}

/// Returns the bytes if they are aligned for direct I/O.
fn usable(bytes: &[u8]) -> Option<&[u8]> {
    (bytes.as_ptr().align_offset(PAGE_BYTES) == 0).then_some(bytes)
}

/// Computes a checksum in pieces, until it is cancelled.
fn sum(bytes: &[u8], cancel: &Cancel) -> Result<Summing, TransferError> {
    let mut summing = Summing::new();
    for piece in bytes.chunks(PIECE_BYTES) {
        cancel.check()?;
        summing.update(piece);
    }
    Ok(summing)
}

impl Storage for DiskStorage {
    fn kind(&self) -> StorageKind {
        StorageKind::Disk
    }

    fn block_bytes(&self) -> usize {
        self.geometry.block_bytes
    }

    fn slots(&self) -> Option<u32> {
        Some(self.geometry.slots)
    }

    /// Erases the slot's record, writes the block, then its new record. After a crash, a slot without a record counts
    /// as empty.
    fn store(
        &self,
        place: Place,
        block: &NewBlock,
        source: &ReadSlot,
        cancel: &Cancel,
    ) -> Result<Sealed, TransferError> {
        check_size(block.bytes, self.block_bytes().min(source.block_bytes()))?;
        cancel.check()?;
        let slot = place.slot()?;
        let _claim = self.claims.write(slot)?;
        self.erase_record(slot)?;
        let block = self.write_data(slot, block, source, cancel)?;
        cancel.check()?;
        self.write_record(slot, block)?;
        Ok(block)
    }

    /// Reads a block into `target` and verifies it. Fails if the slot is being written.
    fn load(
        &self,
        place: Place,
        block: &Sealed,
        target: &mut WriteSlot,
        cancel: &Cancel,
    ) -> Result<(), TransferError> {
        check_size(block.bytes, self.block_bytes().min(target.block_bytes()))?;
        cancel.check()?;
        let slot = place.slot()?;
        let _claim = self.claims.read(slot)?;
        self.read_data(slot, block, target, cancel)
    }

    fn erase(&self, place: Place, _: u64, cancel: &Cancel) -> Result<(), TransferError> {
        cancel.check()?;
        let slot = place.slot()?;
        let _claim = self.claims.write(slot)?;
        self.erase_record(slot)
    }
}

#[cfg(test)]
#[path = "disk_test.rs"]
mod tests;
