use kvasir_proto::types::{BlockName, CopyMode, Tier};
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Most sources of one worker.
pub const SOURCES_MAX: u8 = 16;

/// A source, by its place: below [`SOURCES_MAX`] once it is open.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SourceNumber(pub u8);

/// A source, and how it is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConsolidatedSource {
    /// Its place.
    pub number: SourceNumber,
    /// How its second announcements are read.
    pub copy_mode: CopyMode,
    /// How it names blocks.
    pub naming: Naming,
}

/// How a source names blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Naming {
    /// In its own way. What cannot be joined gets a name from the source's and this salt, by which two sources do not
    /// get the same.
    Own {
        /// The same for a source whenever it is opened, since such names are on disk.
        salt: u64,
    },
    /// By their canonical hashes: whatever it announces can be joined, whether its chain to the root is known or not.
    Canonical,
}

impl Naming {
    /// Of a source of that name, which names blocks in its own way.
    #[must_use]
    pub fn own(source: &str) -> Self {
        Self::Own { salt: xxh3_64_with_seed(source.as_bytes(), SALT_SEED) }
    }
}

/// So that salts have nothing in common with other hashes of names.
const SALT_SEED: u64 = 0x6b76_6173_6972;

/// What a source holds under one of its names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Holding {
    /// As the source names it.
    pub name: BlockName,
    /// As all sources together name it.
    pub block: BlockName,
    /// Whether that is its canonical hash.
    pub is_joined: bool,
    /// How often it is held in each tier, in at least one.
    pub copies: [u16; Tier::COUNT],
}

/// What changes of a source's holdings at one rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HoldingChange {
    /// It holds nothing any more.
    Cleared,
    /// It holds this, in the place of whatever it held under that name.
    Held(Holding),
    /// It holds nothing under that name any more.
    Gone(BlockName),
}
