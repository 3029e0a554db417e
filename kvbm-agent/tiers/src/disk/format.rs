//! File format of a disk tier: header, slots and table of records. Pure.
//!
//! ```text
//! PATH                 0            header: one page
//!                      4096         slots, each of whole pages
//! PATH.kvasir-table    0            a record of 64 bytes for each slot, zeros where there is no block
//! ```
//!
//! All numbers are little-endian. Header and records end with their own checksums. A record's checksum is bound to the
//! file and the slot. Another record, or the table of another file, is therefore detected.

use crate::block::{Fingerprint, Sealed};
use crate::checksum::Checksum;
use crate::fields::{Reader, block_fields};

/// First bytes of the file.
pub(super) const MAGIC: [u8; 8] = *b"KVASIRDT";
/// Version of the format.
pub(super) const VERSION: u32 = 1;
/// Alignment of everything in the file, as direct I/O requires.
pub(super) const PAGE_BYTES: usize = 4096;
/// Bytes of a record.
pub(super) const RECORD_BYTES: usize = 64;
/// Maximum bytes of a description; a longer one is truncated.
pub(super) const DESCRIPTION_BYTES_MAX: usize = 1024;

/// Bytes of the header's fields before the description.
const FIELDS_BYTES: usize = 8 + 4 + 4 + 8 + 8 + 32 + 8;
/// Bytes of the header covered by its checksum.
const CHECKED_BYTES: usize = FIELDS_BYTES + DESCRIPTION_BYTES_MAX;

/// The header of the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) block_bytes: u64,
    pub(super) slots: u32,
    pub(super) fingerprint: Fingerprint,
    /// Distinguishes this file from an earlier one at the same path.
    pub(super) file_id: u64,
    /// Readable form of what the fingerprint covers.
    pub(super) description: String,
}

/// Why a page is not a valid header of this version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum NoHeader {
    /// All zeros: the file was never completed.
    Empty,
    /// Not a header of a disk tier.
    Foreign,
    /// A header of a different version.
    Version(u32),
    /// A header of this version with a wrong checksum.
    Damaged,
}

impl Header {
    /// Encodes the header as one page with a checksum. A long description is shortened.
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

    /// Decodes the header from a page. The first error applies: an empty page, another file type, another version, a
    /// wrong checksum.
    pub(super) fn decode(page: &[u8]) -> Result<Self, NoHeader> {
        if page.iter().all(|byte| *byte == 0) {
            return Err(NoHeader::Empty);
        }
        let mut reader = Reader(page);
        if reader.take_array() != MAGIC {
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
        let fingerprint = Fingerprint(reader.take_array());
        let length = usize::try_from(reader.u64()).unwrap_or_default();
        let text = reader.0.get(..length).unwrap_or_default();
        let description = String::from_utf8_lossy(text).into_owned();
        Ok(Self { block_bytes, slots, fingerprint, file_id, description })
    }
}

/// The block in a slot, and when it was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Record {
    pub(super) block: Sealed,
    /// Sequence number among all writes of the file.
    pub(super) write_number: u64,
}

/// A slot's entry in the table.
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
    /// Encodes the record with a checksum that also covers file and slot.
    pub(super) fn encode(&self, file_id: u64, slot: u32) -> Vec<u8> {
        let mut record = block_fields(&self.block);
        record.extend_from_slice(&self.write_number.to_le_bytes());
        // Reserved for later versions.
        record.resize(RECORD_BYTES - 8, 0);
        let own = own_checksum(file_id, slot, &record);
        record.extend_from_slice(&own.0.to_le_bytes());
        record
    }
}

impl Entry {
    /// Decodes a record of [`RECORD_BYTES`] bytes. Returns `Empty` for zeros, and `Damaged` for a wrong checksum or a
    /// block of more than `block_bytes` bytes.
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

/// Offset of a slot's record in the table.
pub(super) fn record_offset(slot: u32) -> u64 {
    u64::from(slot) * u64::try_from(RECORD_BYTES).unwrap_or_default()
}

/// Sizes and offsets in a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Geometry {
    pub(super) block_bytes: usize,
    /// Bytes per slot: complete pages.
    pub(super) stride_bytes: usize,
    pub(super) slots: u32,
    pub(super) data_offset: u64,
    pub(super) file_bytes: u64,
}

impl Geometry {
    /// Computes the positions in a file of `slots` blocks. Returns `None` if a number is 0, blocks are too large for a
    /// record, or the file would be too large.
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
        // The offset is in the file, whose size was computed without overflow.
        let stride = u64::try_from(self.stride_bytes).unwrap_or_default();
        self.data_offset + u64::from(slot) * stride
    }
}

#[cfg(test)]
#[path = "format_test.rs"]
mod tests;
