//! Limits of an index.

use kvasir_proto::limits;

/// Maximum number of a rank's changed pages of 64 slots that are noted: 4 M blocks.
const CHANGED_PAGES_MAX: usize = 65_536;
/// Maximum number of a rank's changed names that are noted.
const CHANGED_NAMES_MAX: usize = 65_536;
/// Maximum number of concurrent dumps of one rank: four of clients, and the server's own.
const DUMPS_MAX: usize = 6;

/// Limits of the notes about one rank between two images. Beyond them, the next image is complete.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChangeLimits {
    /// Maximum number of pages with changed blocks.
    pub pages_max: usize,
    /// Maximum number of changed names with records.
    pub names_max: usize,
}

impl Default for ChangeLimits {
    fn default() -> Self {
        Self { pages_max: CHANGED_PAGES_MAX, names_max: CHANGED_NAMES_MAX }
    }
}

/// Limits of one index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Maximum depth of a chain, in blocks; deeper blocks are rejected.
    pub chain_blocks_max: usize,
    /// Maximum number of parked names of one rank; further ones are rejected.
    pub rank_parked_max: usize,
    /// Maximum number of names of one rank for one block; further ones are rejected.
    pub block_names_max: usize,
    /// Maximum number of ranks of one worker.
    pub ranks_max: usize,
    /// Maximum number of sources of one worker.
    pub sources_max: usize,
    /// Maximum number of names that may change during a dump; more abort it.
    pub dirty_names_max: usize,
    /// Maximum number of concurrent dumps of one rank.
    pub dumps_max: usize,
    /// Limits of notes between two images; `None` if every image is complete.
    pub changes: Option<ChangeLimits>,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            chain_blocks_max: limits::CHAIN_BLOCKS_MAX,
            rank_parked_max: limits::RANK_PARKED_MAX,
            block_names_max: limits::BLOCK_NAMES_MAX,
            ranks_max: limits::WORKER_RANKS_MAX,
            sources_max: limits::WORKER_SOURCES_MAX,
            dirty_names_max: limits::DUMP_DIRTY_NAMES_MAX,
            dumps_max: DUMPS_MAX,
            changes: None,
        }
    }
}
