//! The answer to a query, as values.

use crate::types::{Cursor, DpRank, SourceState, StateReason, Tier, WorkerId};
use std::time::Duration;

/// The answer to one [`FindQuery`](super::FindQuery).
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FindAnswer {
    /// Complete blocks of the query.
    pub query_blocks: u32,
    /// Most matching blocks of any worker that passed the filter.
    pub best_overlap_blocks: u32,
    /// Block size of the partition, in tokens.
    pub block_size: u32,
    /// Best first.
    pub matches: Vec<WorkerMatch>,
    /// Ids of workers that are not fully restored yet.
    pub restoring: Vec<WorkerId>,
    /// Pools that hold blocks of the query, by id; none if it does not ask for them.
    pub pools: Vec<PoolState>,
    /// Whether workers were left out for which the query must state what follows each block.
    pub wants_next_tokens: bool,
}

/// How much of a query a pool holds, and how fresh that is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PoolState {
    /// The pool.
    pub pool: WorkerId,
    /// Blocks of the query that it holds, wherever they are in it.
    pub held_blocks: u32,
    /// Worst state among its sources.
    pub state: SourceState,
    /// Whether all sources that feed it are connected; false if there are none.
    pub connected: bool,
    /// Announced batches that are not applied yet.
    pub lag_batches: u64,
    /// Time since it was last confirmed to have nothing newer.
    pub verified_age: Option<Duration>,
}

/// One rank's answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkerMatch {
    /// The worker.
    pub worker: WorkerId,
    /// Its rank.
    pub rank: DpRank,
    /// Leading blocks of the query that it holds.
    pub blocks: u32,
    /// Leading blocks of the query that are expected there because of placements.
    pub speculative_blocks: u32,
    /// How many of its `blocks` are in each tier, by [`Tier::index`].
    pub by_tier: [u32; Tier::COUNT],
    /// How many of its `blocks` have each tier as their best one: with `pool_blocks`, the sum is `blocks`.
    pub by_best_tier: [u32; Tier::COUNT],
    /// How many of its `blocks` only a pool of the worker holds.
    pub pool_blocks: u32,
    /// Worst state among its sources.
    pub state: SourceState,
    /// Cursor of that source.
    pub applied: Option<Cursor>,
    /// Announced batches of it that are not applied yet.
    pub lag_batches: u64,
    /// Time since it was last confirmed to have nothing newer.
    pub verified_age: Option<Duration>,
    /// Blocks of the rank that the index lacks because of its byte budget.
    pub shed_blocks: u64,
    /// Whether all sources that feed the rank are connected; false if there are none.
    pub connected: bool,
    /// Whether it may hold less than `blocks`, for a reason that was noted.
    pub may_be_high: bool,
    /// Why its state is worse than exact, if the query asks for that: reasons with their ages.
    pub reasons: Vec<(StateReason, Option<Duration>)>,
}

impl WorkerMatch {
    /// Leading blocks of the query that it holds or is expected to hold: matches are sorted by this.
    #[must_use]
    pub fn expected_blocks(&self) -> u32 {
        self.blocks.max(self.speculative_blocks)
    }
}
