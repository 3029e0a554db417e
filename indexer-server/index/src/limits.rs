//! Bounds of an index.

use kvasir_proto::limits;

/// Most pages of 64 slots that are noted as changed, of one rank: 4 M blocks.
const CHANGED_PAGES_MAX: usize = 65_536;
/// Most names that are noted as changed, of one rank.
const CHANGED_NAMES_MAX: usize = 65_536;
/// Most dumps of one rank at a time: four of clients, and the server's own.
const DUMPS_MAX: usize = 6;

/// Bounds of what is noted of one rank between two images; with more, the next image is complete.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChangeLimits {
    /// Most pages of slots in which blocks changed.
    pub pages_max: usize,
    /// Most names that changed and are spelled out.
    pub names_max: usize,
}

impl Default for ChangeLimits {
    fn default() -> Self {
        Self { pages_max: CHANGED_PAGES_MAX, names_max: CHANGED_NAMES_MAX }
    }
}

/// Bounds of one index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Deepest chain, in blocks; deeper blocks are rejected.
    pub chain_blocks_max: usize,
    /// Most parked names of one rank; further ones are rejected.
    pub rank_parked_max: usize,
    /// Most names of one rank for one block; further ones are rejected.
    pub block_names_max: usize,
    /// Most ranks of one worker.
    pub ranks_max: usize,
    /// Most sources of one worker.
    pub sources_max: usize,
    /// Most names that may be touched while a dump is under way; more abort it.
    pub dirty_names_max: usize,
    /// Most dumps of one rank at a time.
    pub dumps_max: usize,
    /// What is noted between two images; none if every image is to be complete.
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
