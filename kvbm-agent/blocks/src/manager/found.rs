use crate::tier::{BlockTier, BlockTiers};

/// The tiers of a prompt's leading blocks.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Found {
    /// Tiers of each leading block, up to the first block that is in no tier.
    pub blocks: Vec<BlockTiers>,
}

impl Found {
    /// Number of leading blocks that are in some tier.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.blocks.len()
    }

    /// Whether no block was found.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }

    /// Number of leading blocks that are all in `tier`.
    #[must_use]
    pub fn leading(&self, tier: BlockTier) -> usize {
        self.blocks.iter().take_while(|tiers| tiers.contains(tier)).count()
    }

    /// Number of blocks whose nearest tier is `tier`.
    #[must_use]
    pub fn nearest(&self, tier: BlockTier) -> usize {
        self.blocks.iter().filter(|tiers| tiers.iter().next() == Some(tier)).count()
    }
}
