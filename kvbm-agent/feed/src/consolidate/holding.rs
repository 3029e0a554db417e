use kvasir_proto::types::{BlockName, CopyMode, Tier};
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Maximum number of sources of one worker.
pub const SOURCES_MAX: u8 = 16;

/// The number of a source: below [`SOURCES_MAX`] once it is open.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SourceNumber(pub u8);

/// A source, and how to read its events.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConsolidatedSource {
    /// Number of the source.
    pub number: SourceNumber,
    /// How to count repeated stores of a block.
    pub copy_mode: CopyMode,
    /// How the source names blocks.
    pub naming: Naming,
}

/// How a source names blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Naming {
    /// By its own hashes. A block that cannot be joined gets a name made of the source's hash and this salt, so that
    /// two sources never share such a name.
    Own {
        /// Depends on the source's name only, because these names are written to disk.
        salt: u64,
    },
    /// By canonical hashes: all blocks of the source can be joined, even if their parents are unknown.
    Canonical,
}

impl Naming {
    /// The naming of a source with its own hashes.
    #[must_use]
    pub fn own(source: &str) -> Self {
        Self::Own { salt: xxh3_64_with_seed(source.as_bytes(), SALT_SEED) }
    }
}

/// Separates salts from other hashes of names.
const SALT_SEED: u64 = 0x6b76_6173_6972;

/// A source's holding of one block, under the source's name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Holding {
    /// Name of the block at the source.
    pub name: BlockName,
    /// Name of the block in the joined stream.
    pub block: BlockName,
    /// Whether `block` is the canonical hash.
    pub is_joined: bool,
    /// Number of copies in each tier; at least one tier has a copy.
    pub copies: [u16; Tier::COUNT],
}

/// Changes of a source's holdings at one rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HoldingChange {
    /// All holdings are removed.
    Cleared,
    /// The source holds this block. The holding replaces an earlier one of the same name.
    Held(Holding),
    /// The holding of this name is removed.
    Gone(BlockName),
}
