use crate::error::ClientError;
use kvasir_proto::convert::{self, PoolState};
use kvasir_proto::pb::{self, BlocksByTier, FindMatchesResponse, WorkerMatch, WorkerState};
use kvasir_proto::types::{Cursor, SourceState, Tier, WorkerId, WorkerKey};
use std::cmp::{Ordering, Reverse};
use std::time::Duration;

/// The overlap of one worker rank with the prompt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Overlap {
    /// The rank.
    pub worker: WorkerKey,
    /// Leading blocks cached in any tier, confirmed by events. All KV-cache groups of the engine can serve them.
    pub blocks: u32,
    /// Tokens of the prompt that the engine will not compute.
    pub reusable_tokens: u64,
    /// Leading blocks in the engine's main group alone, at least `blocks`.
    pub main_group_blocks: u32,
    /// Leading blocks announced by placements on this rank; see
    /// [`IndexerClient::record_placement`](crate::IndexerClient::record_placement).
    pub speculative_blocks: u32,
    /// Leading blocks in device memory.
    pub device_blocks: u32,
    /// Leading blocks in host memory.
    pub host_blocks: u32,
    /// Leading blocks on local disk.
    pub disk_blocks: u32,
    /// The rank's own leading blocks, each counted only in its best tier, by
    /// [`Tier::index`](kvasir_proto::types::Tier::index). The sum plus `pool_blocks` equals `blocks`.
    pub blocks_by_best_tier: [u32; Tier::COUNT],
    /// The part of `blocks` that only a pool has and the worker reads from there; 0 unless the prompt is `shared`.
    pub pool_blocks: u32,
    /// How far the counts can be trusted.
    pub state: SourceState,
    /// The worker's last event that the index has applied; `None` while the worker is cold.
    pub applied: Option<Cursor>,
    /// Published batches that the index has not applied yet.
    pub lag_batches: u64,
    /// Time since the index last verified that the worker has published no newer event.
    pub verified_age: Option<Duration>,
    /// Blocks of the rank that the index has evicted to stay within its byte budget. The rank may cache more of the
    /// prompt than `blocks`.
    pub shed_blocks: u64,
    /// Whether the index is connected to all publishers of this rank. Distinguishes a dead engine from a slow one: both
    /// are `CatchingUp`.
    pub connected: bool,
    /// Whether the rank may cache fewer blocks than `blocks`, for a reason recorded by the index.
    pub may_be_high: bool,
}

impl Overlap {
    /// The larger of confirmed and speculative leading blocks. Route by this number.
    #[must_use]
    pub fn expected_blocks(&self) -> u32 {
        self.blocks.max(self.speculative_blocks)
    }

    /// The order of an answer: best first; equals are ordered by worker id and rank.
    pub(crate) fn order(&self, other: &Self) -> Ordering {
        let best = Reverse(self.expected_blocks()).cmp(&Reverse(other.expected_blocks()));
        best.then_with(|| self.worker.cmp(&other.worker))
    }
}

/// Answer to one query. The default is the answer for a prompt without a complete block.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Answer {
    /// Complete blocks of the prompt.
    pub query_blocks: u32,
    /// The most blocks that any worker caches, confirmed by events, even if `top_k` excludes this worker.
    pub best_overlap_blocks: u32,
    /// Best first by expected blocks; equals are ordered by worker id and rank.
    pub overlaps: Vec<Overlap>,
    /// Shards whose workers are missing because no replica answered in time.
    pub missing_shards: Vec<u32>,
    /// Workers, by id, that an index is restoring after a restart. They may cache more than `overlaps` lists.
    pub restoring: Vec<WorkerId>,
    /// Pools with blocks of the prompt, by id. Empty unless the prompt is `shared`.
    pub pools: Vec<PoolState>,
}

impl Answer {
    /// The worker with the most expected blocks, if any worker matches.
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

/// Converts the state of a pool. Fails if its id is invalid.
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
        // Older servers omit this field. Without it, a block in device memory counts there.
        let best = at.blocks_by_best_tier.unwrap_or_else(|| best_tiers(at.matched_blocks, tiers));
        let worker = worker_id(&at.worker_id)?;
        let applied = at.applied.as_ref().map(convert::read_cursor).transpose();
        let applied = applied.map_err(|error| ClientError::Malformed(error.to_string()))?;
        Ok(Self {
            worker: WorkerKey { worker, rank: at.dp_rank },
            blocks: at.matched_blocks,
            reusable_tokens: at.reusable_tokens,
            main_group_blocks: at.main_group_blocks,
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

/// Lower bound of blocks by best tier, computed from blocks by tier. A block in host memory may also be one in device
/// memory.
fn best_tiers(blocks: u32, tiers: BlocksByTier) -> BlocksByTier {
    let device = tiers.device.min(blocks);
    let disk = tiers.disk.min(blocks - device);
    BlocksByTier { device, host: blocks - device - disk, disk }
}

fn worker_id(id: &str) -> Result<WorkerId, ClientError> {
    WorkerId::new(id).map_err(|error| ClientError::Malformed(error.to_string()))
}

/// Converts a state. States unknown to this client count as cold.
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
