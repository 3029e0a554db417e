/// Memory tier of a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Tier {
    /// G1: the accelerator's memory.
    Device = 0,
    /// G2: host memory.
    Host = 1,
    /// G3: local disk.
    Disk = 2,
}

impl Tier {
    /// Number of tiers.
    pub const COUNT: usize = 3;
    /// The tier under which a pool's blocks are published. A pool has no tiers; the choice is arbitrary.
    pub const OF_POOL: Self = Self::Disk;
    /// All tiers, fastest first.
    pub const ALL: [Self; Self::COUNT] = [Self::Device, Self::Host, Self::Disk];

    /// Position in [`Tier::ALL`].
    #[must_use]
    pub const fn index(self) -> usize {
        self as usize
    }
}

/// A set of tiers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct TierSet(u8);

impl TierSet {
    /// The empty set.
    pub const EMPTY: Self = Self(0);
    /// Every tier.
    pub const ALL: Self = Self((1 << Tier::COUNT) - 1);

    /// This set with `tier` added.
    #[must_use]
    pub const fn with(self, tier: Tier) -> Self {
        Self(self.0 | 1 << tier as u8)
    }

    /// Whether `tier` is in the set.
    #[must_use]
    pub const fn contains(self, tier: Tier) -> bool {
        self.0 & (1 << tier as u8) != 0
    }

    /// Whether the set is empty.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }
}

impl FromIterator<Tier> for TierSet {
    fn from_iter<I: IntoIterator<Item = Tier>>(tiers: I) -> Self {
        tiers.into_iter().fold(Self::EMPTY, Self::with)
    }
}
