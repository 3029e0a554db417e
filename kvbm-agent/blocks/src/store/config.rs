use crate::inactive::EvictionPolicy;
use thiserror::Error;

/// Maximum blocks of a pool. A slot takes about 150 bytes.
const POOL_BLOCKS_MAX: u32 = 1 << 26;
/// Maximum tokens of a block.
const BLOCK_TOKENS_MAX: u32 = 4_096;

/// How a pool treats a second block with the same content.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum DuplicatePolicy {
    /// The second block keeps its slot until its last handle is dropped. The first block is kept equally long.
    #[default]
    Allow,
    /// The second block's slot is freed immediately, and its owner gets a handle to the first block.
    Reject,
}

/// Configuration of a pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct PoolConfig {
    /// Number of blocks: 1 to 2^26.
    pub blocks: u32,
    /// Tokens per block: 1 to 4,096.
    pub block_tokens: u32,
    /// How the pool treats a second block with the same content.
    pub duplicates: DuplicatePolicy,
    /// The eviction policy.
    pub eviction: EvictionPolicy,
    /// Maximum pins at a time.
    pub pins_max: usize,
}

impl PoolConfig {
    /// A pool of `blocks` blocks of `block_tokens` tokens, with defaults for the other fields.
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

    /// Checks that the numbers of blocks and tokens are within their limits.
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
    /// The field's value.
    pub value: u32,
    /// The highest accepted value.
    pub max: u32,
}
