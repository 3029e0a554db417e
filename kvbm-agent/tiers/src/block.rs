//! What a block is called, and what is known of its bytes.

use crate::checksum::Checksum;
use std::fmt;

/// What the bytes of blocks mean: a hash of layout, model and whatever else decides what their bytes are.
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

/// What a block is: enough to announce it again after a restart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Identity {
    /// The block with its complete prefix.
    pub sequence_hash: u64,
    /// The sequence hash of the block before it; none for the first of a sequence.
    pub parent: Option<u64>,
    /// Its own tokens, whatever comes before them.
    pub local_hash: u64,
    /// How many blocks come before it.
    pub position: u32,
}

/// A block that is to be stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NewBlock {
    /// What it is.
    pub identity: Identity,
    /// How many of a slot's bytes are its own.
    pub bytes: usize,
    /// What the bytes must add up to; none when they are summed for the first time.
    pub checksum: Option<Checksum>,
}

/// A block whose bytes are known by their checksum.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sealed {
    /// What it is.
    pub identity: Identity,
    /// How many of a slot's bytes are its own.
    pub bytes: usize,
    /// What the bytes add up to.
    pub checksum: Checksum,
}

impl From<Sealed> for NewBlock {
    /// A copy of a block into a further tier: its checksum goes with it.
    fn from(block: Sealed) -> Self {
        let Sealed { identity, bytes, checksum } = block;
        Self { identity, bytes, checksum: Some(checksum) }
    }
}
