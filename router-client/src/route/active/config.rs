use crate::route::error::{ConfigError, check};
use std::fmt;
use std::num::NonZeroU32;
use std::str::FromStr;
use std::time::Duration;

/// Default limit of active requests.
pub const ACTIVE_REQUESTS_MAX: usize = 1 << 18;
/// Default limit of distinct blocks in use over all ranks: 32 MiB of hashes.
pub const ACTIVE_BLOCKS_MAX: usize = 1 << 22;
/// Maximum number of ranks.
pub const ACTIVE_RANKS_MAX: usize = 1 << 16;
/// Maximum lease of a request.
pub const REQUEST_LEASE_MAX: Duration = Duration::from_secs(86_400);

/// Which blocks are tracked. Tracking output without prompts, which document 004 rejects, cannot be expressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum BlockTracking {
    /// No blocks: for workers that only compute prompts.
    Off,
    /// Blocks of prompts.
    #[default]
    Prompt,
    /// Blocks of prompts and of output.
    PromptAndOutput,
}

/// Whether requests of one rank share the blocks of a common prefix.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum KvReuse {
    /// Requests share blocks: a shared block counts once.
    #[default]
    Assumed,
    /// Requests share no blocks, as on decode workers that cannot reuse transferred blocks: each block counts.
    Unique,
}

/// What load is tracked, and its limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ActiveConfig {
    /// Tokens per block.
    pub block_size: NonZeroU32,
    /// Which blocks are tracked.
    pub blocks: BlockTracking,
    /// Whether blocks are shared.
    pub reuse: KvReuse,
    /// Whether prefill tokens are tracked.
    pub track_prefill_tokens: bool,
    /// Lease: how long a request counts without an update.
    pub lease: Duration,
    /// Maximum active requests, at least 1.
    pub requests_max: usize,
    /// Maximum distinct blocks in use over all ranks, at least 1.
    pub blocks_max: usize,
}

const TRACKING_NAMES: [(BlockTracking, &str); 3] = [
    (BlockTracking::Off, "off"),
    (BlockTracking::Prompt, "prompt"),
    (BlockTracking::PromptAndOutput, "prompt-and-output"),
];
const REUSE_NAMES: [(KvReuse, &str); 2] =
    [(KvReuse::Assumed, "assumed"), (KvReuse::Unique, "unique")];

// === impl BlockTracking ===

impl fmt::Display for BlockTracking {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = TRACKING_NAMES.iter().find(|(at, _)| at == self);
        f.write_str(name.map_or("", |(_, name)| name))
    }
}

impl FromStr for BlockTracking {
    type Err = ConfigError;

    fn from_str(text: &str) -> Result<Self, ConfigError> {
        let found = TRACKING_NAMES.iter().find(|(_, name)| *name == text).map(|(at, _)| *at);
        check(found.is_some(), "track blocks", "must be one of off, prompt, prompt-and-output")?;
        Ok(found.unwrap_or_default())
    }
}

// === impl KvReuse ===

impl fmt::Display for KvReuse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = REUSE_NAMES.iter().find(|(at, _)| at == self);
        f.write_str(name.map_or("", |(_, name)| name))
    }
}

impl FromStr for KvReuse {
    type Err = ConfigError;

    fn from_str(text: &str) -> Result<Self, ConfigError> {
        let found = REUSE_NAMES.iter().find(|(_, name)| *name == text).map(|(at, _)| *at);
        check(found.is_some(), "kv reuse", "must be one of assumed, unique")?;
        Ok(found.unwrap_or_default())
    }
}

// === impl ActiveConfig ===

impl ActiveConfig {
    /// The documented defaults: blocks of prompts, with reuse, and prefill tokens; a lease of 300 s.
    #[must_use]
    pub const fn new(block_size: NonZeroU32) -> Self {
        Self {
            block_size,
            blocks: BlockTracking::Prompt,
            reuse: KvReuse::Assumed,
            track_prefill_tokens: true,
            // Not in the documents; Dynamo uses the same value.
            lease: Duration::from_secs(300),
            requests_max: ACTIVE_REQUESTS_MAX,
            blocks_max: ACTIVE_BLOCKS_MAX,
        }
    }

    /// Settings for a pool of prefill workers, which never tracks blocks (document 004).
    #[must_use]
    pub const fn prefill_pool(block_size: NonZeroU32) -> Self {
        Self { blocks: BlockTracking::Off, ..Self::new(block_size) }
    }

    /// Checks all settings.
    ///
    /// # Errors
    /// If the lease or a limit is 0, or the lease is longer than [`REQUEST_LEASE_MAX`].
    pub fn check(&self) -> Result<(), ConfigError> {
        check(!self.lease.is_zero(), "request lease", "must be longer than 0")?;
        check(self.lease <= REQUEST_LEASE_MAX, "request lease", "must be at most a day")?;
        check(self.requests_max > 0, "active requests", "must be at least 1")?;
        check(self.blocks_max > 0, "active blocks", "must be at least 1")
    }
}
