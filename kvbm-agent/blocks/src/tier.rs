//! The storage tiers of blocks (G1 to G4), as values and as types.

use kvasir_proto::types::Tier;
use std::fmt::{Debug, Display, Formatter, Result};

/// A storage tier, ordered by distance from the engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum BlockTier {
    /// G1: the accelerator's memory.
    Device = 0,
    /// G2: host memory.
    Host = 1,
    /// G3: local disk.
    Disk = 2,
    /// G4: a volume of blobs that other workers can read.
    Volume = 3,
}

impl BlockTier {
    /// Number of tiers.
    pub const COUNT: usize = 4;
    /// All tiers, nearest first.
    pub const ALL: [Self; Self::COUNT] = [Self::Device, Self::Host, Self::Disk, Self::Volume];

    /// Position in [`BlockTier::ALL`].
    #[must_use]
    pub const fn index(self) -> usize {
        self as usize
    }

    /// The corresponding tier in the index; `None` for a volume, which belongs to no worker.
    #[must_use]
    pub const fn of_worker(self) -> Option<Tier> {
        match self {
            Self::Device => Some(Tier::Device),
            Self::Host => Some(Tier::Host),
            Self::Disk => Some(Tier::Disk),
            Self::Volume => None,
        }
    }
}

impl Display for BlockTier {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        f.write_str(match self {
            Self::Device => "device",
            Self::Host => "host",
            Self::Disk => "disk",
            Self::Volume => "volume",
        })
    }
}

/// A set of tiers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct BlockTiers(u8);

impl BlockTiers {
    /// No tier.
    pub const EMPTY: Self = Self(0);

    /// This set with `tier` added.
    #[must_use]
    pub const fn with(self, tier: BlockTier) -> Self {
        Self(self.0 | 1 << tier as u8)
    }

    /// This set with `tier` removed.
    #[must_use]
    pub const fn without(self, tier: BlockTier) -> Self {
        Self(self.0 & !(1 << tier as u8))
    }

    /// Whether `tier` is in the set.
    #[must_use]
    pub const fn contains(self, tier: BlockTier) -> bool {
        self.0 & (1 << tier as u8) != 0
    }

    /// Whether no tier is in the set.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The tiers in the set, nearest first.
    pub fn iter(self) -> impl Iterator<Item = BlockTier> {
        BlockTier::ALL.into_iter().filter(move |tier| self.contains(*tier))
    }
}

/// A tier as a type, so that blocks of different tiers can't be mixed up.
pub trait TierMarker: Debug + Send + Sync + 'static {
    /// The tier as a value.
    const TIER: BlockTier;
}

macro_rules! marker {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum $name {}

        impl TierMarker for $name {
            const TIER: BlockTier = BlockTier::$name;
        }
    };
}

marker! {
    /// Marks blocks in the accelerator's memory (G1).
    Device
}
marker! {
    /// Marks blocks in host memory (G2).
    Host
}
marker! {
    /// Marks blocks on a local disk (G3).
    Disk
}
marker! {
    /// Marks blocks in a volume of blobs (G4).
    Volume
}
