use crate::gate::GateConfig;
use crate::inactive::EvictionPolicy;
use crate::layout::{BlockInSlot, LayoutConfig, LayoutError, LayoutForm};
use crate::plan::LaneLimits;
use crate::store::{DuplicatePolicy, PoolConfig, PoolConfigError};
use crate::tier::BlockTier;
use std::collections::BTreeMap;
use thiserror::Error;

/// One tier.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TierConfig {
    /// Blocks.
    pub blocks: u32,
    /// What is evicted first.
    pub eviction: EvictionPolicy,
    /// What happens to second blocks of the same content.
    pub duplicates: DuplicatePolicy,
    /// Most pins at a time.
    pub pins_max: usize,
    /// What the lanes into this tier may have at a time.
    pub lane: LaneLimits,
    /// How often a block must have been offered before it is offloaded into this tier; 0 and 1 let all through.
    pub offers_min: u64,
}

impl TierConfig {
    /// A tier of `blocks` blocks, and defaults for the rest.
    #[must_use]
    pub fn new(blocks: u32) -> Self {
        let PoolConfig { eviction, duplicates, pins_max, .. } = PoolConfig::new(blocks, 1);
        let lane = LaneLimits::DEFAULT;
        Self { blocks, eviction, duplicates, pins_max, lane, offers_min: 0 }
    }

    pub(super) const fn pool(&self, block_tokens: u32) -> PoolConfig {
        let Self { blocks, eviction, duplicates, pins_max, .. } = *self;
        PoolConfig { blocks, block_tokens, duplicates, eviction, pins_max }
    }

    /// Refuses limits that let no block of `block_bytes` bytes through, ever.
    pub(super) fn validate(&self, tier: BlockTier, block_bytes: u64) -> Result<(), ConfigError> {
        let LaneLimits { queued_blocks_max, batch_blocks_max, in_flight_transfers_max, .. } =
            self.lane;
        for (field, value, min) in [
            ("queued_blocks_max", queued_blocks_max as u64, 1),
            ("batch_blocks_max", batch_blocks_max as u64, 1),
            ("in_flight_transfers_max", in_flight_transfers_max as u64, 1),
            ("in_flight_bytes_max", self.lane.in_flight_bytes_max, block_bytes),
        ] {
            if value < min {
                return Err(ConfigError::Lane { tier, field, value, min });
            }
        }
        Ok(())
    }
}

/// What a [`crate::KvBlockManagerState`] is made from.
#[derive(Debug, Clone)]
pub struct KvBlockManagerConfig {
    /// How blocks lie in memory; `num_blocks` is each tier's own. Its `page_size` is the tokens of a block.
    pub layout: LayoutConfig,
    /// How the parts of a block lie in its slot.
    pub form: LayoutForm,
    /// The tiers that there are.
    pub tiers: BTreeMap<BlockTier, TierConfig>,
    /// Events that wait for their reader.
    pub queued_events_max: usize,
    /// How loads are measured.
    pub gate: GateConfig,
}

impl KvBlockManagerConfig {
    /// One without tiers, of contiguous blocks, with room for 65,536 events.
    #[must_use]
    pub const fn new(layout: LayoutConfig) -> Self {
        let gate = GateConfig::DEFAULT;
        let form = LayoutForm::FullyContiguous;
        Self { layout, form, tiers: BTreeMap::new(), queued_events_max: 65_536, gate }
    }

    /// Adds a tier.
    #[must_use]
    pub fn with_tier(mut self, tier: BlockTier, config: TierConfig) -> Self {
        self.tiers.insert(tier, config);
        self
    }

    /// A block in its slot.
    ///
    /// # Errors
    /// [`LayoutError`] if the layout is not accepted.
    pub fn block(&self) -> Result<BlockInSlot, LayoutError> {
        BlockInSlot::new(self.form, self.layout)
    }

    /// The layout of one tier.
    #[must_use]
    pub fn layout_of(&self, tier: BlockTier) -> Option<LayoutConfig> {
        let num_blocks = self.tiers.get(&tier)?.blocks;
        Some(LayoutConfig { num_blocks, ..self.layout })
    }
}

/// Why a configuration is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum ConfigError {
    /// The layout can't be made.
    #[error("layout: {0}")]
    Layout(#[from] LayoutError),
    /// A tier's pool can't be made.
    #[error("{tier}: {error}")]
    Pool {
        /// The tier.
        tier: BlockTier,
        /// Why.
        error: PoolConfigError,
    },
    /// Nothing could ever be copied into a tier.
    #[error("{tier}: {field} is {value}: give at least {min}, or nothing is ever copied into it")]
    Lane {
        /// The tier.
        tier: BlockTier,
        /// Which limit of its lanes.
        field: &'static str,
        /// Its value.
        value: u64,
        /// The least that lets a block through.
        min: u64,
    },
    /// There is no tier.
    #[error("there is no tier")]
    NoTier,
}
