use crate::gate::GateConfig;
use crate::inactive::EvictionPolicy;
use crate::layout::{BlockInSlot, LayoutConfig, LayoutError, LayoutForm};
use crate::plan::LaneLimits;
use crate::store::{DuplicatePolicy, PoolConfig, PoolConfigError};
use crate::tier::BlockTier;
use std::collections::BTreeMap;
use thiserror::Error;

/// Configuration of one tier.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TierConfig {
    /// Number of blocks.
    pub blocks: u32,
    /// The eviction policy.
    pub eviction: EvictionPolicy,
    /// How the pool treats a second block with the same content.
    pub duplicates: DuplicatePolicy,
    /// Maximum pins at a time.
    pub pins_max: usize,
    /// Limits of each lane into this tier.
    pub lane: LaneLimits,
    /// Count from which an offered block is offloaded into this tier (`FrequencyFilter`): each offer doubles the count,
    /// and it falls with time. 0 and 1 disable the filter.
    pub offers_min: u64,
}

impl TierConfig {
    /// A tier of `blocks` blocks with defaults for the other fields.
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

    /// Rejects limits that would never admit a block of `block_bytes` bytes.
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

/// Configuration of a [`crate::KvBlockManagerState`].
#[derive(Debug, Clone)]
pub struct KvBlockManagerConfig {
    /// Dimensions of blocks. Each tier replaces `num_blocks`; `page_size` is the number of tokens per block.
    pub layout: LayoutConfig,
    /// How the parts of a block are arranged in its slot.
    pub form: LayoutForm,
    /// The configured tiers.
    pub tiers: BTreeMap<BlockTier, TierConfig>,
    /// Maximum unread events.
    pub queued_events_max: usize,
    /// How load bandwidth is measured.
    pub gate: GateConfig,
}

impl KvBlockManagerConfig {
    /// A configuration without tiers, with contiguous blocks and room for 65,536 events.
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

    /// The layout of one block in its slot.
    ///
    /// # Errors
    /// [`LayoutError`] if the layout is invalid.
    pub fn block(&self) -> Result<BlockInSlot, LayoutError> {
        BlockInSlot::new(self.form, self.layout)
    }

    /// The layout of one tier; `None` if the tier is not configured.
    #[must_use]
    pub fn layout_of(&self, tier: BlockTier) -> Option<LayoutConfig> {
        let num_blocks = self.tiers.get(&tier)?.blocks;
        Some(LayoutConfig { num_blocks, ..self.layout })
    }
}

/// Why a configuration is rejected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum ConfigError {
    /// The layout is invalid.
    #[error("layout: {0}")]
    Layout(#[from] LayoutError),
    /// A tier's pool configuration is invalid.
    #[error("{tier}: {error}")]
    Pool {
        /// The tier.
        tier: BlockTier,
        /// Why the pool configuration is invalid.
        error: PoolConfigError,
    },
    /// A tier's lane limits would never admit a block.
    #[error("{tier}: {field} is {value}: give at least {min}, or nothing is ever copied into it")]
    Lane {
        /// The tier.
        tier: BlockTier,
        /// The limit.
        field: &'static str,
        /// The limit's value.
        value: u64,
        /// The lowest value that admits a block.
        min: u64,
    },
    /// No tier is configured.
    #[error("there is no tier")]
    NoTier,
}
