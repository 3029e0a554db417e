//! Format of an object: a header of [`HEADER_BYTES`] bytes, then the block's bytes. Pure.

use crate::block::{Fingerprint, Sealed};
use crate::checksum::Checksum;
use crate::error::TransferError;
use crate::fields::{Reader, block_fields};

const MAGIC: [u8; 8] = *b"KVASIROB";
/// The version of the format.
const VERSION: u32 = 1;
/// Bytes before the block.
pub(super) const HEADER_BYTES: usize = 128;
const CHECKED_BYTES: usize = HEADER_BYTES - 8;

pub(super) fn encode(block: &Sealed, fingerprint: Fingerprint) -> Vec<u8> {
    let fields = block_fields(block);
    let mut header = [&MAGIC[..], &VERSION.to_le_bytes(), &fingerprint.0, &fields].concat();
    header.resize(CHECKED_BYTES, 0);
    let own = Checksum::of(0, &header);
    header.extend_from_slice(&own.0.to_le_bytes());
    header
}

/// Decodes the header of an object. Fails if the object is of another program, version or fingerprint, is damaged, or
/// its block has more than `bytes_max` bytes.
pub(super) fn decode(
    header: &[u8],
    fingerprint: Fingerprint,
    bytes_max: usize,
) -> Result<Sealed, TransferError> {
    let foreign = |what: String| Err(TransferError::Foreign(format!("the object {what}")));
    let short = TransferError::Short { done: header.len(), wanted: HEADER_BYTES };
    let (checked, own) = header.split_at_checked(CHECKED_BYTES).ok_or(short)?;
    let mut reader = Reader(checked);
    if reader.take_array() != MAGIC {
        return foreign("is no block".to_owned());
    }
    let version = reader.u32();
    if version != VERSION {
        return foreign(format!("has format version {version}, and this program reads {VERSION}"));
    }
    let expected = Checksum(Reader(own).u64());
    let found = Checksum::of(0, checked);
    if found != expected {
        return Err(TransferError::Corrupt { expected, found });
    }
    let theirs = Fingerprint(reader.take_array());
    if theirs != fingerprint {
        return foreign(format!(
            "has blocks of fingerprint {theirs}, and this volume {fingerprint}"
        ));
    }
    match reader.block(bytes_max) {
        Some(block) => Ok(block),
        None => foreign("has a block of another size".to_owned()),
    }
}

#[cfg(test)]
#[path = "format_test.rs"]
mod tests;
