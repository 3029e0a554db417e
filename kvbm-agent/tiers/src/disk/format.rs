//! What is in the files. Pure.
//!
//! ```text
//! PATH                 0            header: one page
//!                      4096         slots, each of whole pages
//! PATH.kvasir-table    0            a record of 64 bytes for each slot, zeros where there is no block
//! ```
//!
//! All numbers are little-endian. Header and records end in a checksum of their own; a record's is bound to the file and the
//! slot, so that no other record can stand in its place, and no other file's table beside this file.

use crate::block::{Fingerprint, Sealed};
use crate::checksum::Checksum;
use crate::fields::{Reader, block_fields};

/// The first bytes of the file.
pub(super) const MAGIC: [u8; 8] = *b"KVASIRDT";
/// The version of the format.
pub(super) const VERSION: u32 = 1;
/// What everything in the file is aligned to: direct I/O needs it.
pub(super) const PAGE_BYTES: usize = 4096;
/// Bytes of a record.
pub(super) const RECORD_BYTES: usize = 64;
/// Most bytes of a description; a longer one is cut.
pub(super) const DESCRIPTION_BYTES_MAX: usize = 1024;

/// Bytes of the header's fields before the description.
const FIELDS_BYTES: usize = 8 + 4 + 4 + 8 + 8 + 32 + 8;
/// Bytes of the header that are checked.
const CHECKED_BYTES: usize = FIELDS_BYTES + DESCRIPTION_BYTES_MAX;

/// The header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) block_bytes: u64,
    pub(super) slots: u32,
    pub(super) fingerprint: Fingerprint,
    /// Distinguishes this file from an earlier one at its place.
    pub(super) file_id: u64,
    /// What the fingerprint stands for, in words.
    pub(super) description: String,
}

/// Why a page is no header of this version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum NoHeader {
    /// Zeros: the file was never finished.
    Empty,
    /// Something else.
    Foreign,
    /// Of another version.
    Version(u32),
    /// It was one.
    Damaged,
}

impl Header {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut text = self.description.as_str();
        while text.len() > DESCRIPTION_BYTES_MAX {
            text = text.char_indices().next_back().and_then(|(at, _)| text.get(..at)).unwrap_or("");
        }
        let length = u32::try_from(text.len()).unwrap_or_default();
        let mut page = [
            &MAGIC[..],
            &VERSION.to_le_bytes(),
            &self.slots.to_le_bytes(),
            &self.block_bytes.to_le_bytes(),
            &self.file_id.to_le_bytes(),
            &self.fingerprint.0,
            &u64::from(length).to_le_bytes(),
            text.as_bytes(),
        ]
        .concat();
        page.resize(CHECKED_BYTES, 0);
        let own = Checksum::of(0, &page);
        page.extend_from_slice(&own.0.to_le_bytes());
        page.resize(PAGE_BYTES, 0);
        page
    }

    pub(super) fn decode(page: &[u8]) -> Result<Self, NoHeader> {
        if page.iter().all(|byte| *byte == 0) {
            return Err(NoHeader::Empty);
        }
        let mut reader = Reader(page);
        if reader.take() != MAGIC {
            return Err(NoHeader::Foreign);
        }
        let version = reader.u32();
        if version != VERSION {
            return Err(NoHeader::Version(version));
        }
        let (checked, own) = page.split_at_checked(CHECKED_BYTES).ok_or(NoHeader::Damaged)?;
        if Checksum::of(0, checked) != Checksum(Reader(own).u64()) {
            return Err(NoHeader::Damaged);
        }
        let slots = reader.u32();
        let block_bytes = reader.u64();
        let file_id = reader.u64();
        let fingerprint = Fingerprint(reader.take());
        let length = usize::try_from(reader.u64()).unwrap_or_default();
        let text = reader.0.get(..length).unwrap_or_default();
        let description = String::from_utf8_lossy(text).into_owned();
        Ok(Self { block_bytes, slots, fingerprint, file_id, description })
    }
}

/// Which block a slot has, and when it was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Record {
    pub(super) block: Sealed,
    /// Counts writes of the file.
    pub(super) write_number: u64,
}

/// What stands for a slot in the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Entry {
    Empty,
    Block(Record),
    Damaged,
}

fn own_checksum(file_id: u64, slot: u32, fields: &[u8]) -> Checksum {
    Checksum::of(file_id ^ u64::from(slot).rotate_left(32), fields)
}

impl Record {
    pub(super) fn encode(&self, file_id: u64, slot: u32) -> Vec<u8> {
        let mut record = block_fields(&self.block);
        record.extend_from_slice(&self.write_number.to_le_bytes());
        // Places for what later versions need.
        record.resize(RECORD_BYTES - 8, 0);
        let own = own_checksum(file_id, slot, &record);
        record.extend_from_slice(&own.0.to_le_bytes());
        record
    }
}

impl Entry {
    /// What a record of [`RECORD_BYTES`] says, in a file whose blocks have at most `block_bytes`.
    pub(super) fn decode(record: &[u8], file_id: u64, slot: u32, block_bytes: usize) -> Self {
        if record.iter().all(|byte| *byte == 0) {
            return Self::Empty;
        }
        let (fields, own) = record.split_at_checked(RECORD_BYTES - 8).unwrap_or_default();
        if own_checksum(file_id, slot, fields) != Checksum(Reader(own).u64()) {
            return Self::Damaged;
        }
        let mut reader = Reader(fields);
        let block = reader.block(block_bytes);
        let write_number = reader.u64();
        block.map_or(Self::Damaged, |block| Self::Block(Record { block, write_number }))
    }
}

/// Where the record of a slot lies in the table.
pub(super) fn record_offset(slot: u32) -> u64 {
    u64::from(slot) * u64::try_from(RECORD_BYTES).unwrap_or_default()
}

/// Where things lie in a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Geometry {
    pub(super) block_bytes: usize,
    /// Whole pages.
    pub(super) stride_bytes: usize,
    pub(super) slots: u32,
    pub(super) data_offset: u64,
    pub(super) file_bytes: u64,
}

impl Geometry {
    /// None if there are no blocks, blocks are larger than a record can say, or the file larger than a file can be.
    pub(super) fn new(block_bytes: usize, slots: u32) -> Option<Self> {
        if block_bytes == 0 || slots == 0 || u32::try_from(block_bytes).is_err() {
            return None;
        }
        let stride_bytes = block_bytes.checked_next_multiple_of(PAGE_BYTES)?;
        let data_offset = u64::try_from(PAGE_BYTES).ok()?;
        let data = u64::try_from(stride_bytes).ok()?.checked_mul(u64::from(slots))?;
        let file_bytes = data_offset.checked_add(data)?;
        i64::try_from(file_bytes).ok()?;
        Some(Self { block_bytes, stride_bytes, slots, data_offset, file_bytes })
    }

    pub(super) fn slot_offset(&self, slot: u32) -> u64 {
        // It lies in the file, whose size was computed without overflow.
        let stride = u64::try_from(self.stride_bytes).unwrap_or_default();
        self.data_offset + u64::from(slot) * stride
    }
}

#[cfg(test)]
#[path = "format_test.rs"]
mod tests;
