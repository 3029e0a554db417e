use kvasir_proto::limits;

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
            dumps_max: 4,
        }
    }
}
