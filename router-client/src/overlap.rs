use crate::error::ClientError;
use kvasir_proto::convert::{self, PoolState};
use kvasir_proto::pb::{self, BlocksByTier, FindMatchesResponse, WorkerMatch, WorkerState};
use kvasir_proto::types::{Cursor, SourceState, Tier, WorkerId, WorkerKey};
use std::cmp::{Ordering, Reverse};
use std::time::Duration;

/// What one worker rank holds of the prompt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Overlap {
    /// The rank.
    pub worker: WorkerKey,
    /// Leading blocks that it holds in any tier, confirmed by events.
    pub blocks: u32,
    /// Leading blocks that placements announced for it; see
    /// [`IndexerClient::record_placement`](crate::IndexerClient::record_placement).
    pub speculative_blocks: u32,
    /// How many of them lie in device memory.
    pub device_blocks: u32,
    /// How many of them lie in host memory.
    pub host_blocks: u32,
    /// How many of them lie on local disk.
    pub disk_blocks: u32,
    /// The same blocks, each in its best tier only, by [`Tier::index`](kvasir_proto::types::Tier::index): with
    /// `pool_blocks`, the sum is `blocks`.
    pub blocks_by_best_tier: [u32; Tier::COUNT],
    /// How many of its `blocks` only a pool has that the worker reads; 0 unless the prompt is `shared`.
    pub pool_blocks: u32,
    /// How far this can be trusted.
    pub state: SourceState,
    /// The last event of the worker that the index has applied; none while the worker is cold.
    pub applied: Option<Cursor>,
    /// Batches that were published and are not in the index yet.
    pub lag_batches: u64,
    /// How long ago the index last verified that the worker has published nothing newer.
    pub verified_age: Option<Duration>,
    /// Blocks of the rank that the index has shed to stay within its byte budget: the rank may hold more of
    /// the prompt than `blocks`.
    pub shed_blocks: u64,
    /// Whether the index is connected to all publishers of this rank. It distinguishes an engine that is
    /// gone from one that is slow: both are `CatchingUp`.
    pub connected: bool,
    /// Whether the rank may hold less than `blocks`, for a reason that the index has noted.
    pub may_be_high: bool,
}

impl Overlap {
    /// The larger of its confirmed and its speculative leading blocks. Route by this number.
    #[must_use]
    pub fn expected_blocks(&self) -> u32 {
        self.blocks.max(self.speculative_blocks)
    }

    /// The order of an answer: best first, equals by worker id and rank.
    pub(crate) fn order(&self, other: &Self) -> Ordering {
        let best = Reverse(self.expected_blocks()).cmp(&Reverse(other.expected_blocks()));
        best.then_with(|| self.worker.cmp(&other.worker))
    }
}

/// Answer for one prompt. The default is the answer for a prompt without a complete block.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Answer {
    /// Complete blocks of the prompt.
    pub query_blocks: u32,
    /// Most blocks that any worker holds, confirmed by events, even if `top_k` leaves that worker out.
    pub best_overlap_blocks: u32,
    /// Best first by expected blocks; equals by worker id and rank.
    pub overlaps: Vec<Overlap>,
    /// Shards whose workers are missing: none of their replicas answered in time.
    pub missing_shards: Vec<u32>,
    /// Workers that an index restores after a restart, by id: they may hold more than `overlaps` lists.
    pub restoring: Vec<WorkerId>,
    /// Pools that hold blocks of the prompt, by id; none unless the prompt is `shared`.
    pub pools: Vec<PoolState>,
}

impl Answer {
    /// The worker that holds or is about to hold most, if any does.
    #[must_use]
    pub fn best(&self) -> Option<&Overlap> {
        self.overlaps.first()
    }
}

impl TryFrom<FindMatchesResponse> for Answer {
    type Error = ClientError;

    fn try_from(answer: FindMatchesResponse) -> Result<Self, ClientError> {
        let overlaps = answer.matches.into_iter().map(Overlap::try_from);
        let restoring = answer.restoring_worker_ids.iter().map(|id| worker_id(id));
        Ok(Self {
            query_blocks: answer.query_blocks,
            best_overlap_blocks: answer.best_overlap_blocks,
            overlaps: overlaps.collect::<Result<_, _>>()?,
            missing_shards: answer.missing_shards,
            restoring: restoring.collect::<Result<_, _>>()?,
            pools: answer.pools.iter().map(pool_state).collect::<Result<_, _>>()?,
        })
    }
}

fn pool_state(at: &pb::PoolState) -> Result<PoolState, ClientError> {
    Ok(PoolState {
        pool: worker_id(&at.pool_id)?,
        held_blocks: at.held_blocks,
        state: state(at.state()),
        connected: at.connected,
        lag_batches: at.lag_batches,
        verified_age: at.verified_age_ms.map(Duration::from_millis),
    })
}

impl TryFrom<WorkerMatch> for Overlap {
    type Error = ClientError;

    fn try_from(at: WorkerMatch) -> Result<Self, ClientError> {
        let state = state(at.state());
        let tiers = at.blocks_by_tier.unwrap_or_default();
        // An older server does not say: a block in device memory counts there.
        let best = at.blocks_by_best_tier.unwrap_or_else(|| best_tiers(at.matched_blocks, tiers));
        let worker = worker_id(&at.worker_id)?;
        let applied = at.applied.as_ref().map(convert::read_cursor).transpose();
        let applied = applied.map_err(|error| ClientError::Malformed(error.to_string()))?;
        Ok(Self {
            worker: WorkerKey { worker, rank: at.dp_rank },
            blocks: at.matched_blocks,
            speculative_blocks: at.speculative_blocks,
            device_blocks: tiers.device,
            host_blocks: tiers.host,
            disk_blocks: tiers.disk,
            blocks_by_best_tier: [best.device, best.host, best.disk],
            pool_blocks: at.pool_blocks,
            state,
            applied,
            lag_batches: at.lag_batches,
            verified_age: at.verified_age_ms.map(Duration::from_millis),
            shed_blocks: at.shed_blocks,
            connected: at.connected,
            may_be_high: at.may_be_high,
        })
    }
}

/// The least that blocks by tier say about the best tiers: a block in host memory may be one in device memory, too.
fn best_tiers(blocks: u32, tiers: BlocksByTier) -> BlocksByTier {
    let device = tiers.device.min(blocks);
    let disk = tiers.disk.min(blocks - device);
    BlocksByTier { device, host: blocks - device - disk, disk }
}

fn worker_id(id: &str) -> Result<WorkerId, ClientError> {
    WorkerId::new(id).map_err(|error| ClientError::Malformed(error.to_string()))
}

/// A state that this client does not know counts as cold.
fn state(state: WorkerState) -> SourceState {
    match state {
        WorkerState::Exact => SourceState::Exact,
        WorkerState::CatchingUp => SourceState::CatchingUp,
        WorkerState::Gap => SourceState::Gap,
        WorkerState::Degraded => SourceState::Degraded,
        WorkerState::Partial => SourceState::Partial,
        WorkerState::Cold | WorkerState::Unspecified => SourceState::Cold,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_best_tiers_no_block_is_credited_more_than_it_may_be() {
        // Four blocks in both device and host memory, six on disk.
        let copied = BlocksByTier { device: 4, host: 4, disk: 6 };
        assert_eq!(best_tiers(10, copied), BlocksByTier { device: 4, host: 0, disk: 6 });
        let apart = BlocksByTier { device: 4, host: 6, disk: 0 };
        assert_eq!(best_tiers(10, apart), apart);
        assert_eq!(best_tiers(0, BlocksByTier::default()), BlocksByTier::default());
    }
}
