//! What the bytes of a block add up to: CRC-64/NVME, of the bytes, their number and the block's sequence hash (D106).

use crc_fast::{CrcAlgorithm, Digest};
use std::fmt;

/// The checksum of a block, bound to its sequence hash: the same bytes under another name have another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Checksum(pub u64);

impl fmt::Display for Checksum {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(to, "{:016x}", self.0)
    }
}

impl Checksum {
    /// The checksum of a block in one piece.
    #[must_use]
    pub fn of(sequence_hash: u64, bytes: &[u8]) -> Self {
        let mut summing = Summing::new();
        summing.update(bytes);
        summing.seal(sequence_hash)
    }
}

/// A checksum that is being computed, piece by piece.
#[derive(Debug)]
pub struct Summing {
    digest: Digest,
    bytes: u64,
}

impl Summing {
    /// Of nothing yet.
    #[must_use]
    pub fn new() -> Self {
        Self { digest: Digest::new(CrcAlgorithm::Crc64Nvme), bytes: 0 }
    }

    /// Goes on with the next bytes.
    pub fn update(&mut self, bytes: &[u8]) {
        self.digest.update(bytes);
        self.bytes = self.bytes.wrapping_add(u64::try_from(bytes.len()).unwrap_or(u64::MAX));
    }

    /// The checksum of the bytes as those of a block.
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
