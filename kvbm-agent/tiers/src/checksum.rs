//! Checksums of blocks: CRC-64/NVME over the bytes, their number and the block's sequence hash (D106).

use crc_fast::{CrcAlgorithm, Digest};
use std::fmt;

/// The checksum of a block, bound to its sequence hash: the same bytes under a different hash have a different
/// checksum.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Checksum(pub u64);

impl fmt::Display for Checksum {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(to, "{:016x}", self.0)
    }
}

impl Checksum {
    /// Computes the checksum of a block in one piece.
    #[must_use]
    pub fn of(sequence_hash: u64, bytes: &[u8]) -> Self {
        let mut summing = Summing::new();
        summing.update(bytes);
        summing.seal(sequence_hash)
    }
}

/// Computes a checksum piece by piece.
#[derive(Debug)]
pub struct Summing {
    digest: Digest,
    bytes: u64,
}

impl Summing {
    /// Begins a checksum.
    #[must_use]
    pub fn new() -> Self {
        Self { digest: Digest::new(CrcAlgorithm::Crc64Nvme), bytes: 0 }
    }

    /// Adds the next bytes.
    pub fn update(&mut self, bytes: &[u8]) {
        self.digest.update(bytes);
        self.bytes = self.bytes.wrapping_add(u64::try_from(bytes.len()).unwrap_or(u64::MAX));
    }

    /// Finishes the checksum, bound to the block's sequence hash.
    #[must_use]
    pub fn seal(mut self, sequence_hash: u64) -> Checksum {
        self.digest.update(&self.bytes.to_le_bytes());
        self.digest.update(&sequence_hash.to_le_bytes());
        Checksum(self.digest.finalize())
    }
}

impl Default for Summing {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
#[path = "checksum_test.rs"]
mod tests;
