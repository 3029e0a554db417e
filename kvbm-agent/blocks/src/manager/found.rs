use crate::tier::{BlockTier, BlockTiers};

/// How much of a prompt is where.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Found {
    /// The tiers of each leading block that is in any tier.
    pub blocks: Vec<BlockTiers>,
}

impl Found {
    /// Leading blocks that are in some tier.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.blocks.len()
    }

    /// Whether nothing was found.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }

    /// Leading blocks that are all in one tier.
    #[must_use]
    pub fn leading(&self, tier: BlockTier) -> usize {
        self.blocks.iter().take_while(|tiers| tiers.contains(tier)).count()
    }

    /// Blocks that are nowhere nearer than in `tier`.
    #[must_use]
    pub fn nearest(&self, tier: BlockTier) -> usize {
        self.blocks.iter().filter(|tiers| tiers.iter().next() == Some(tier)).count()
    }
}
