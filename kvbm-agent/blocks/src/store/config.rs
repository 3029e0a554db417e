use crate::inactive::EvictionPolicy;
use thiserror::Error;

/// Most blocks of a pool; a slot costs about 150 bytes.
const POOL_BLOCKS_MAX: u32 = 1 << 26;
/// Most tokens of a block.
const BLOCK_TOKENS_MAX: u32 = 4_096;

/// What a pool does with a second block of the same content.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum DuplicatePolicy {
    /// It keeps its slot until its last handle is dropped, and the first one stays as long.
    #[default]
    Allow,
    /// Its slot is free at once, and its owner gets a handle of the first one.
    Reject,
}

/// What a pool is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct PoolConfig {
    /// Blocks: 1 to 2^26.
    pub blocks: u32,
    /// Tokens of a block: 1 to 4,096.
    pub block_tokens: u32,
    /// What happens to second blocks of the same content.
    pub duplicates: DuplicatePolicy,
    /// What is evicted first.
    pub eviction: EvictionPolicy,
    /// Most pins at a time.
    pub pins_max: usize,
}

impl PoolConfig {
    /// A pool of `blocks` blocks of `block_tokens` tokens, and defaults for the rest.
    #[must_use]
    pub fn new(blocks: u32, block_tokens: u32) -> Self {
        Self {
            blocks,
            block_tokens,
            duplicates: DuplicatePolicy::default(),
            eviction: EvictionPolicy::default(),
            pins_max: 65_536,
        }
    }

    pub(crate) fn validate(&self) -> Result<(), PoolConfigError> {
        for (field, value, max) in [
            ("blocks", self.blocks, POOL_BLOCKS_MAX),
            ("block_tokens", self.block_tokens, BLOCK_TOKENS_MAX),
        ] {
            if value == 0 || value > max {
                return Err(PoolConfigError { field, value, max });
            }
        }
        Ok(())
    }
}

/// A field of a [`PoolConfig`] is out of range.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("{field} is {value}, which is not in 1 to {max}")]
pub struct PoolConfigError {
    /// The field.
    pub field: &'static str,
    /// Its value.
    pub value: u32,
    /// The largest that is accepted.
    pub max: u32,
}
