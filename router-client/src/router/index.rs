use crate::client::IndexerClient;
use crate::error::ClientError;
use crate::overlap::{Answer, PoolState};
use crate::prompt::HashedPrompt;
use crate::route::{Freshness, TierBlocks, Trust, TrustConfig};
use crate::sharded::ShardedClient;
use kvasir_proto::types::{WorkerId, WorkerKey};
use std::time::Duration;
use tokio::time::Instant;

/// Who answers how much of a prompt each worker holds.
#[derive(Debug, Clone)]
#[expect(clippy::large_enum_variant, reason = "a router has one")]
pub enum Index {
    /// Nobody: load alone decides.
    None,
    /// One server.
    One(IndexerClient),
    /// Shards and replicas.
    Sharded(ShardedClient),
}

/// What the index contributed to a decision.
#[derive(Debug)]
pub enum IndexUse {
    /// The mode or the weight of the request needs no overlap, or there is no index.
    NotNeeded,
    /// It answered. Workers of missing shards count as holding nothing.
    Answered {
        /// How long that took.
        elapsed: Duration,
        /// Shards of which no replica answered.
        missing_shards: Vec<u32>,
        /// How many ranks hold a block of the prompt, as events say.
        holding_ranks: usize,
        /// How many ranks' overlap was not credited fully; see [`Trust`].
        distrusted_ranks: usize,
    },
    /// It did not: the decision is by load alone.
    Failed {
        /// How long that took.
        elapsed: Duration,
        /// Why.
        error: ClientError,
    },
}

/// What one rank holds of a prompt.
#[derive(Debug, Clone, Copy)]
pub(super) struct Held {
    /// Blocks that are credited.
    pub(super) blocks: TierBlocks,
    pub(super) trust: Trust,
}

/// What the ranks hold of a prompt: those that hold any.
#[derive(Debug)]
pub(super) struct Overlaps {
    pub(super) by_rank: Vec<(WorkerKey, Held)>,
    pub(super) index_use: IndexUse,
}

impl Index {
    pub(super) async fn overlaps(&self, prompt: &HashedPrompt, trust: &TrustConfig) -> Overlaps {
        let begin = Instant::now();
        let answer = match self {
            Self::None => return Overlaps::not_needed(),
            Self::One(client) => client.find_hashed(prompt).await,
            // On the heap: KBs that would be copied with each future around them.
            Self::Sharded(client) => Box::pin(client.find_hashed(prompt)).await,
        };
        let elapsed = begin.elapsed();
        match answer {
            Ok(answer) => Overlaps::answered(answer, trust, elapsed),
            Err(error) => {
                tracing::debug!(%error, "the index does not answer: load alone decides");
                let index_use = IndexUse::Failed { elapsed, error };
                Overlaps { by_rank: Vec::new(), index_use }
            }
        }
    }

    /// Records that a prompt was sent to a rank.
    pub(super) async fn record(
        &self,
        prompt: &HashedPrompt,
        rank: &WorkerKey,
        ttl: Duration,
    ) -> Result<(), ClientError> {
        match self {
            Self::None => Ok(()),
            Self::One(client) => client.record_placement_hashed(prompt, rank, Some(ttl)).await,
            Self::Sharded(client) => client.record_placement_hashed(prompt, rank, Some(ttl)).await,
        }
    }

    pub(super) const fn is_none(&self) -> bool {
        matches!(self, Self::None)
    }
}

impl Overlaps {
    pub(super) const fn not_needed() -> Self {
        Self { by_rank: Vec::new(), index_use: IndexUse::NotNeeded }
    }

    fn answered(answer: Answer, config: &TrustConfig, elapsed: Duration) -> Self {
        let Answer { overlaps, missing_shards, restoring, pools, .. } = answer;
        let pool_trust = pool_trust(&pools, &restoring, config);
        let (mut holding_ranks, mut distrusted_ranks) = (0, 0);
        let by_rank = overlaps.into_iter().map(|at| {
            let trust = config.judge(&Freshness {
                state: at.state,
                is_connected: at.connected,
                is_restoring: restoring.contains(&at.worker.worker),
                verified_age: at.verified_age,
            });
            let [device, host, disk] = at.blocks_by_best_tier;
            holding_ranks += usize::from(at.blocks > 0);
            distrusted_ranks += usize::from(trust != Trust::Full && at.blocks > 0);
            let own = TierBlocks { device, host, disk, pool: 0 };
            let of_pools = TierBlocks { pool: at.pool_blocks, ..TierBlocks::default() };
            let pool = config.credited(of_pools, pool_trust).pool;
            let credited = TierBlocks { pool, ..config.credited(own, trust) };
            // What placements announce is expected in device memory.
            (at.worker, Held { blocks: credited.expecting(at.speculative_blocks), trust })
        });
        let by_rank = by_rank.collect();
        let index_use =
            IndexUse::Answered { elapsed, missing_shards, holding_ranks, distrusted_ranks };
        Self { by_rank, index_use }
    }
}

/// How far what pools hold can be trusted: as far as the least of them. A pool outlives its sources, so it is never unknown.
fn pool_trust(pools: &[PoolState], restoring: &[WorkerId], config: &TrustConfig) -> Trust {
    let judge = |at: &PoolState| {
        config.judge(&Freshness {
            state: at.state,
            is_connected: at.connected,
            is_restoring: restoring.contains(&at.pool),
            verified_age: at.verified_age,
        })
    };
    pools.iter().map(judge).max().unwrap_or_default().min(Trust::Behind)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::overlap::Overlap;
    use kvasir_proto::types::SourceState;

    fn id(id: &str) -> WorkerId {
        WorkerId::new(id).expect("a name")
    }

    fn held(worker: &str, state: SourceState, connected: bool) -> Overlap {
        Overlap {
            worker: WorkerKey { worker: id(worker), rank: 0 },
            blocks: 10,
            speculative_blocks: 0,
            device_blocks: 8,
            host_blocks: 4,
            disk_blocks: 0,
            blocks_by_best_tier: [8, 2, 0],
            pool_blocks: 0,
            state,
            applied: None,
            lag_batches: 0,
            verified_age: Some(Duration::ZERO),
            shed_blocks: 0,
            connected,
        }
    }

    #[test]
    fn what_is_credited_depends_on_state_restoring_and_placements() {
        let overlaps = vec![
            held("exact", SourceState::Exact, true),
            held("restoring", SourceState::Exact, true),
            held("behind", SourceState::Gap, true),
            held("gone", SourceState::CatchingUp, false),
            Overlap { speculative_blocks: 6, ..held("placed", SourceState::Cold, false) },
        ];
        let restoring = vec![id("restoring")];
        let answer = Answer { overlaps, restoring, missing_shards: vec![3], ..Answer::default() };
        let found = Overlaps::answered(answer, &TrustConfig::default(), Duration::ZERO);
        let credited = found.by_rank.iter().map(|(key, at)| {
            let TierBlocks { device, host, disk, .. } = at.blocks;
            (key.worker.as_str(), [device, host, disk], at.trust)
        });
        assert_eq!(
            credited.collect::<Vec<_>>(),
            [
                ("exact", [8, 2, 0], Trust::Full),
                ("restoring", [4, 1, 0], Trust::Behind),
                ("behind", [4, 1, 0], Trust::Behind),
                ("gone", [0, 0, 0], Trust::Unknown),
                // Placements are the router's own: they are expected whatever the events say.
                ("placed", [6, 0, 0], Trust::Unknown),
            ]
        );
        let IndexUse::Answered { missing_shards, holding_ranks, distrusted_ranks, .. } =
            found.index_use
        else {
            panic!("{:?}", found.index_use)
        };
        assert_eq!((missing_shards, holding_ranks, distrusted_ranks), (vec![3], 5, 4));
    }

    /// What a pool has is credited as far as the pool can be trusted, whatever is known of the worker.
    #[test]
    fn blocks_of_pools_are_credited_by_the_state_of_the_pools() {
        let shared = |state, connected| {
            let own = held("w", SourceState::Gap, true);
            let overlaps = vec![Overlap { blocks: 20, pool_blocks: 10, ..own }];
            let pool = PoolState {
                pool: id("p"),
                held_blocks: 10,
                state,
                connected,
                lag_batches: 0,
                verified_age: Some(Duration::ZERO),
            };
            let answer = Answer { overlaps, pools: vec![pool], ..Answer::default() };
            let found = Overlaps::answered(answer, &TrustConfig::default(), Duration::ZERO);
            found.by_rank[0].1.blocks
        };
        let own = TierBlocks { device: 4, host: 1, disk: 0, pool: 10 };
        assert_eq!(shared(SourceState::Exact, true), own);
        assert_eq!(shared(SourceState::Gap, true), TierBlocks { pool: 5, ..own });
        // Its only source is gone: the blocks are still there.
        assert_eq!(shared(SourceState::CatchingUp, false), TierBlocks { pool: 5, ..own });
    }
}
