//! Encodes numbers and blocks for files and objects: consecutive little-endian fields. Pure.

use crate::block::{Identity, Sealed};
use crate::checksum::Checksum;

/// Flag: the block has a parent.
const HAS_PARENT: u32 = 1;
/// Flag that is always set, so that the fields of a block are never all zeros.
const IS_BLOCK: u32 = 2;

/// Reads consecutive fields. Returns zeros beyond the end, because callers have checked the length or a checksum.
pub(crate) struct Reader<'a>(pub(crate) &'a [u8]);

impl Reader<'_> {
    pub(crate) fn take_array<const N: usize>(&mut self) -> [u8; N] {
        let (taken, rest) = self.0.split_first_chunk().unwrap_or((&[0; N], &[]));
        self.0 = rest;
        *taken
    }

    pub(crate) fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.take_array())
    }

    pub(crate) fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.take_array())
    }

    /// Decodes a block written by [`block_fields`]; `None` if the fields are invalid for blocks of at most `bytes_max`
    /// bytes.
    pub(crate) fn block(&mut self, bytes_max: usize) -> Option<Sealed> {
        let sequence_hash = self.u64();
        let parent = self.u64();
        let local_hash = self.u64();
        let position = self.u32();
        let bytes = self.u32();
        let flags = self.u32();
        let checksum = Checksum(self.u64());
        let parent = (flags & HAS_PARENT != 0).then_some(parent);
        let identity = Identity { sequence_hash, parent, local_hash, position };
        let bytes = usize::try_from(bytes).ok().filter(|bytes| (1..=bytes_max).contains(bytes))?;
        Some(Sealed { identity, bytes, checksum })
    }
}

/// Encodes a block in 44 bytes.
pub(crate) fn block_fields(block: &Sealed) -> Vec<u8> {
    let Sealed { identity, bytes, checksum } = block;
    let parent = identity.parent.map_or(0, |_| HAS_PARENT);
    [
        &identity.sequence_hash.to_le_bytes()[..],
        &identity.parent.unwrap_or_default().to_le_bytes(),
        &identity.local_hash.to_le_bytes(),
        &identity.position.to_le_bytes(),
        // Storages refuse larger blocks.
        &u32::try_from(*bytes).unwrap_or_default().to_le_bytes(),
        &(parent | IS_BLOCK).to_le_bytes(),
        &checksum.0.to_le_bytes(),
    ]
    .concat()
}
