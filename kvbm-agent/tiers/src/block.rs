//! Identity, size and checksum of stored blocks.

use crate::checksum::Checksum;
use std::fmt;

/// Hash of everything that determines the meaning of block bytes: layout, model and so on.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Fingerprint(pub [u8; 32]);

impl fmt::Display for Fingerprint {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(to, "{byte:02x}"))
    }
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, to)
    }
}

/// A block's identity: enough to publish the block again after a restart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Identity {
    /// Hash of the block with its complete prefix.
    pub sequence_hash: u64,
    /// Sequence hash of the previous block; `None` for the first block of a sequence.
    pub parent: Option<u64>,
    /// Hash of the block's own tokens, independent of the prefix.
    pub local_hash: u64,
    /// Number of blocks before this one.
    pub position: u32,
}

/// A block to store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NewBlock {
    /// The block's identity.
    pub identity: Identity,
    /// Bytes of the block, at most the bytes of a slot.
    pub bytes: usize,
    /// Expected checksum; `None` if the checksum is computed for the first time.
    pub checksum: Option<Checksum>,
}

/// A block with a known checksum.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sealed {
    /// The block's identity.
    pub identity: Identity,
    /// Bytes of the block, at most the bytes of a slot.
    pub bytes: usize,
    /// Checksum of the bytes.
    pub checksum: Checksum,
}

impl From<Sealed> for NewBlock {
    /// For a copy into another tier, which keeps the checksum.
    fn from(block: Sealed) -> Self {
        let Sealed { identity, bytes, checksum } = block;
        Self { identity, bytes, checksum: Some(checksum) }
    }
}
