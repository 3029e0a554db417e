//! Answers to queries.

use crate::types::{Cursor, DpRank, SourceState, StateReason, Tier, WorkerId};
use std::time::Duration;

/// The answer to one [`FindQuery`](super::FindQuery).
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FindAnswer {
    /// Complete blocks of the query.
    pub query_blocks: u32,
    /// Most matching blocks of any worker that passed the query's filter.
    pub best_overlap_blocks: u32,
    /// Block size of the partition, in tokens.
    pub block_size: u32,
    /// Matching ranks, best first.
    pub matches: Vec<WorkerMatch>,
    /// Ids of workers that are not fully restored yet.
    pub restoring: Vec<WorkerId>,
    /// Pools with blocks of the query, by id. Empty if the query does not ask for pools.
    pub pools: Vec<PoolState>,
    /// Whether workers are missing because the query lacks the token after each block
    /// ([`FindQuery`](super::FindQuery)'s `next_tokens`).
    pub wants_next_tokens: bool,
}

/// How many blocks of a query a pool has, and how fresh that count is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PoolState {
    /// The pool.
    pub pool: WorkerId,
    /// Number of the query's blocks in the pool, at any position of the query.
    pub held_blocks: u32,
    /// Worst state of the pool's sources.
    pub state: SourceState,
    /// Whether all sources that feed the pool are connected; false without sources.
    pub connected: bool,
    /// Announced batches that are not applied yet.
    pub lag_batches: u64,
    /// Time since the index last confirmed that it has the pool's newest events.
    pub verified_age: Option<Duration>,
}

/// The answer for one rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkerMatch {
    /// The worker.
    pub worker: WorkerId,
    /// The worker's rank.
    pub rank: DpRank,
    /// Leading blocks of the query that the rank or one of its worker's pools has, in all KV-cache groups.
    pub blocks: u32,
    /// Leading blocks of the query in the main group alone.
    pub main_group_blocks: u32,
    /// Tokens of the prompt that the engine will not compute.
    pub reusable_tokens: u64,
    /// Leading blocks of the query that the rank should have because of placements.
    pub speculative_blocks: u32,
    /// Number of `blocks` in each tier, by [`Tier::index`].
    pub by_tier: [u32; Tier::COUNT],
    /// Number of `blocks` whose best tier is this one. The sum, with `pool_blocks`, is `blocks`.
    pub by_best_tier: [u32; Tier::COUNT],
    /// Number of `blocks` that only a pool of the worker has.
    pub pool_blocks: u32,
    /// Worst state of the rank's sources.
    pub state: SourceState,
    /// Cursor of the source with the worst state.
    pub applied: Option<Cursor>,
    /// Announced batches of that source that are not applied yet.
    pub lag_batches: u64,
    /// Time since the index last confirmed that it has the newest events of that source.
    pub verified_age: Option<Duration>,
    /// Blocks of the rank that the index has evicted because of its byte budget.
    pub shed_blocks: u64,
    /// Whether all sources that feed the rank are connected; false if there are none.
    pub connected: bool,
    /// Whether the rank may have fewer blocks than `blocks`, for a recorded reason.
    pub may_be_high: bool,
    /// Why the state is worse than exact, if the query asks for reasons: each with its age.
    pub reasons: Vec<(StateReason, Option<Duration>)>,
}

impl WorkerMatch {
    /// Leading blocks of the query that the rank has or should have. Matches are sorted by this number.
    #[must_use]
    pub fn expected_blocks(&self) -> u32 {
        self.blocks.max(self.speculative_blocks)
    }
}
