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
    /// Its number.
    pub number: SourceNumber,
    /// How to count repeated stores of a block.
    pub copy_mode: CopyMode,
    /// How it names blocks.
    pub naming: Naming,
}

/// How a source names blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Naming {
    /// By its own hashes. A block that cannot be joined gets a name made of the source's hash and this salt, so that two
    /// sources never share such a name.
    Own {
        /// Depends on the source's name only, because these names are written to disk.
        salt: u64,
    },
    /// By canonical hashes: all its blocks can be joined, even if their parents are not known.
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

/// What a source holds under one of its names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Holding {
    /// As the source names it.
    pub name: BlockName,
    /// Its name in the joined stream.
    pub block: BlockName,
    /// Whether that name is the canonical hash.
    pub is_joined: bool,
    /// Number of copies in each tier; at least one tier has a copy.
    pub copies: [u16; Tier::COUNT],
}

/// Changes of a source's holdings at one rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HoldingChange {
    /// It holds nothing any more.
    Cleared,
    /// The source holds this block. It replaces the earlier holding of the same name.
    Held(Holding),
    /// It holds nothing under that name any more.
    Gone(BlockName),
}
