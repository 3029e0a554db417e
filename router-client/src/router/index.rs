use crate::client::IndexerClient;
use crate::error::ClientError;
use crate::overlap::{Answer, Overlap};
use crate::prompt::HashedPrompt;
use crate::route::{ExpectedReuse, Freshness, TierBlocks, Trust, TrustConfig};
use crate::sharded::ShardedClient;
use kvasir_proto::convert::{PoolState, ReuseReport};
use kvasir_proto::pb::Tier;
use kvasir_proto::types::{PartitionKey, SourceState, WorkerId, WorkerKey};
use std::time::Duration;
use tokio::time::{Instant, timeout_at};

/// The index that reports each worker's overlap with a prompt.
#[derive(Debug, Clone)]
#[expect(clippy::large_enum_variant, reason = "a router has one")]
pub enum Index {
    /// No index: load alone decides.
    None,
    /// One server.
    One(IndexerClient),
    /// Shards and replicas.
    Sharded(ShardedClient),
}

/// What the index contributed to a decision.
#[derive(Debug)]
pub enum IndexUse {
    /// The request's mode or weight needs no overlap, or there is no index.
    NotNeeded,
    /// The index answered. Workers of missing shards count as having no blocks.
    Answered {
        /// How long the answer took.
        elapsed: Duration,
        /// Shards of which no replica answered.
        missing_shards: Vec<u32>,
        /// Number of ranks that cache a block of the prompt, confirmed by events.
        holding_ranks: usize,
        /// Number of ranks whose overlap was not fully credited; see [`Trust`].
        distrusted_ranks: usize,
    },
    /// The index did not answer: load alone decides.
    Failed {
        /// Time until the failure.
        elapsed: Duration,
        /// Cause of the failure.
        error: ClientError,
    },
}

/// The cached blocks of one rank for a prompt.
#[derive(Debug, Clone, Copy)]
pub(super) struct Held {
    /// Credited blocks.
    pub(super) blocks: TierBlocks,
    pub(super) trust: Trust,
    /// Predicted reuse of the prompt, in tokens; `None` while the index catches up with the rank.
    pub(super) reusable_tokens: Option<u64>,
}

/// The ranks' cached blocks for a prompt, only for ranks that have any.
#[derive(Debug)]
pub(super) struct Overlaps {
    pub(super) by_rank: Vec<(WorkerKey, Held)>,
    /// Leading blocks that ranks cache in host memory or on disk, each in its better tier. Only fully trusted ranks.
    /// `None` if the index was not queried or did not answer in time.
    pub(super) below_device: Option<Vec<(WorkerKey, TierBlocks)>>,
    /// Whether the answer covers all ranks: other ranks than the listed ones have no blocks of the prompt.
    pub(super) is_complete: bool,
    pub(super) index_use: IndexUse,
}

impl Index {
    /// Queries the index for the blocks of a prompt that each rank has, and the trust in each rank. Without an answer,
    /// the decision uses loads alone.
    pub(super) async fn overlaps(&self, prompt: &HashedPrompt, trust: &TrustConfig) -> Overlaps {
        let begin = Instant::now();
        if self.is_none() {
            return Overlaps::not_needed();
        }
        let answer = self.find(prompt, &[]).await;
        let elapsed = begin.elapsed();
        match answer {
            Ok(answer) => Overlaps::answered(answer, trust, elapsed),
            Err(error) => {
                tracing::debug!(%error, "the index does not answer: load alone decides");
                let index_use = IndexUse::Failed { elapsed, error };
                Overlaps { index_use, ..Overlaps::not_needed() }
            }
        }
    }

    /// Queries the index as [`Index::overlaps`], and also for the blocks that agents can serve to other agents. If a
    /// rank has leading blocks in device memory, sends a second query, because the first answer does not show which of
    /// these blocks are also in host memory or on disk. Both queries share one deadline. If the second query fails, no
    /// blocks are fetched.
    pub(super) async fn overlaps_for_fetches(
        &self,
        prompt: &HashedPrompt,
        trust: &TrustConfig,
    ) -> Overlaps {
        let begin = Instant::now();
        let mut found = self.overlaps(prompt, trust).await;
        if !found.below_device.iter().flatten().any(|(_, blocks)| blocks.device > 0) {
            return found;
        }
        let tiers = [Tier::Host, Tier::Disk];
        let answer = timeout_at(begin + self.deadline(), self.find(prompt, &tiers)).await;
        found.below_device = match answer {
            Ok(Ok(answer)) => Some(below_device(&answer, trust, true)),
            Ok(Err(error)) => {
                tracing::debug!(%error, "the index does not answer: nothing is fetched");
                None
            }
            Err(_elapsed) => {
                tracing::debug!("the index did not answer within its deadline: nothing is fetched");
                None
            }
        };
        if let IndexUse::Answered { elapsed, .. } = &mut found.index_use {
            *elapsed = begin.elapsed();
        }
        found
    }

    fn deadline(&self) -> Duration {
        match self {
            Self::None => Duration::ZERO,
            Self::One(client) => client.deadline(),
            Self::Sharded(client) => client.deadline(),
        }
    }

    async fn find(&self, prompt: &HashedPrompt, tiers: &[Tier]) -> Result<Answer, ClientError> {
        match self {
            Self::None => Ok(Answer::default()),
            Self::One(client) => client.find_in(prompt, tiers).await,
            // On the heap: otherwise each future around it would copy several KB.
            Self::Sharded(client) => Box::pin(client.find_in(prompt, tiers)).await,
        }
    }

    /// Records at the index that a prompt was sent to a rank. [`Index::None`] ignores the record.
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

    /// Reports the actual reuse of prompts to the index. [`Index::None`] ignores the report.
    pub(super) async fn report_reuse(&self, report: &ReuseReport) -> Result<(), ClientError> {
        match self {
            Self::None => Ok(()),
            Self::One(client) => client.report_reuse(report).await,
            Self::Sharded(client) => client.report_reuse(report).await,
        }
    }

    pub(super) const fn is_none(&self) -> bool {
        matches!(self, Self::None)
    }
}

impl Overlaps {
    pub(super) const fn not_needed() -> Self {
        Self {
            by_rank: Vec::new(),
            below_device: None,
            is_complete: false,
            index_use: IndexUse::NotNeeded,
        }
    }

    /// Converts the answer of the index: the credited blocks of each rank, and how many ranks are trusted.
    fn answered(answer: Answer, config: &TrustConfig, elapsed: Duration) -> Self {
        let below_device = below_device(&answer, config, false);
        let Answer { overlaps, missing_shards, restoring, pools, .. } = answer;
        let pool_trust = pool_trust(&pools, &restoring, config);
        let mut holding_ranks = 0;
        let mut distrusted_ranks = 0;
        let by_rank = overlaps.into_iter().map(|at| {
            let trust = judge(&at, &restoring, config);
            let [device, host, disk] = at.blocks_by_best_tier;
            holding_ranks += usize::from(at.blocks > 0);
            distrusted_ranks += usize::from(trust != Trust::Full && at.blocks > 0);
            let own = TierBlocks { device, host, disk, pool: 0 };
            let of_pools = TierBlocks { pool: at.pool_blocks, ..TierBlocks::default() };
            let pool = config.credited(of_pools, pool_trust).pool;
            // Blocks of pools are trusted by the pools' state.
            let is_current = at.pool_blocks == 0
                && matches!(at.state, SourceState::Exact | SourceState::Partial)
                && at.connected
                && !restoring.contains(&at.worker.worker);
            let reusable_tokens = is_current.then_some(at.reusable_tokens);
            let credited = TierBlocks { pool, ..config.credited(own, trust) };
            // Blocks announced by placements are expected in device memory.
            let blocks = credited.expecting(at.speculative_blocks);
            (at.worker, Held { blocks, trust, reusable_tokens })
        });
        let by_rank = by_rank.collect();
        let is_complete = missing_shards.is_empty() && restoring.is_empty() && pools.is_empty();
        let index_use =
            IndexUse::Answered { elapsed, missing_shards, holding_ranks, distrusted_ranks };
        Self { by_rank, below_device: Some(below_device), is_complete, index_use }
    }

    /// Predicted reuse of the prompt at a rank, for a report. `None` without a prediction, and if the query limits which
    /// ranks the answer lists.
    pub(super) fn expected_reuse(
        &self,
        prompt: &HashedPrompt,
        rank: &WorkerKey,
    ) -> Option<ExpectedReuse> {
        if prompt.top_k > 0 || prompt.minimum_overlap_blocks > 1 {
            return None;
        }
        let tokens = match self.by_rank.iter().find(|(listed, _)| listed == rank) {
            Some((_, held)) => held.reusable_tokens?,
            None => self.is_complete.then_some(0)?,
        };
        Some(ExpectedReuse {
            partition: PartitionKey::new(&prompt.model, &prompt.tenant).ok()?,
            prompt: prompt.prompt_tokens()?,
            expected: u32::try_from(tokens).ok()?,
        })
    }
}

/// Returns how far the reported blocks of a rank can be trusted.
fn judge(at: &Overlap, restoring: &[WorkerId], config: &TrustConfig) -> Trust {
    config.judge(&Freshness {
        state: at.state,
        is_connected: at.connected,
        is_restoring: restoring.contains(&at.worker.worker),
        verified_age: at.verified_age,
        may_be_high: at.may_be_high,
    })
}

/// Returns the blocks of fully trusted ranks in host memory or on disk. `is_all` means that the answer covers only
/// these tiers. Otherwise, blocks that may be only in device memory or a pool are counted as `device`: then the
/// remaining blocks may not be leading ones.
fn below_device(
    answer: &Answer,
    config: &TrustConfig,
    is_all: bool,
) -> Vec<(WorkerKey, TierBlocks)> {
    let is_below = |at: &&Overlap| at.host_blocks > 0 || at.disk_blocks > 0;
    let is_trusted = |at: &&Overlap| judge(at, &answer.restoring, config) == Trust::Full;
    let blocks = |at: &Overlap| {
        let all = at.blocks;
        let host = at.host_blocks.min(at.blocks);
        let [device, ..] = at.blocks_by_best_tier;
        let elsewhere = device + at.pool_blocks;
        let is_known = is_all || elsewhere == 0 || host == all || at.disk_blocks >= all;
        let blocks = match is_known {
            true => TierBlocks { host, disk: all - host, ..TierBlocks::default() },
            false => TierBlocks { device: elsewhere, ..TierBlocks::default() },
        };
        (at.worker.clone(), blocks)
    };
    answer.overlaps.iter().filter(is_below).filter(is_trusted).map(blocks).collect()
}

/// Returns how far the pools' blocks can be trusted: as far as the least trusted pool. A pool outlives its sources, so
/// it is never unknown.
fn pool_trust(pools: &[PoolState], restoring: &[WorkerId], config: &TrustConfig) -> Trust {
    let judge = |at: &PoolState| {
        config.judge(&Freshness {
            state: at.state,
            is_connected: at.connected,
            is_restoring: restoring.contains(&at.pool),
            verified_age: at.verified_age,
            may_be_high: false,
        })
    };
    pools.iter().map(judge).max().unwrap_or(Trust::Behind).min(Trust::Behind)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(id: &str) -> WorkerId {
        WorkerId::new(id).expect("a name")
    }

    fn held(worker: &str, state: SourceState, connected: bool) -> Overlap {
        Overlap {
            worker: WorkerKey { worker: id(worker), rank: 0 },
            blocks: 10,
            reusable_tokens: 0,
            main_group_blocks: 10,
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
            may_be_high: false,
        }
    }

    /// Only blocks known to be in host memory or on disk, without a hole, can be fetched.
    #[test]
    fn blocks_below_device_memory_are_known_or_asked_for() {
        let at = |id: &str, [host, disk]: [u32; 2], blocks_by_best_tier| Overlap {
            host_blocks: host,
            disk_blocks: disk,
            blocks_by_best_tier,
            ..held(id, SourceState::Exact, true)
        };
        let overlaps = vec![
            at("copied-to-host", [10, 0], [8, 2, 0]),
            at("copied-to-disk", [4, 10], [8, 0, 2]),
            at("not-on-device", [7, 3], [0, 7, 3]),
            at("unclear", [4, 0], [8, 2, 0]),
            at("device-only", [0, 0], [10, 0, 0]),
            Overlap { state: SourceState::Gap, ..at("behind", [10, 0], [0, 10, 0]) },
        ];
        let answer = Answer { overlaps, ..Answer::default() };
        let below = below_device(&answer, &TrustConfig::default(), false);
        let below = below.iter().map(|(key, TierBlocks { device, host, disk, .. })| {
            (key.worker.as_str(), [*device, *host, *disk])
        });
        assert_eq!(
            below.collect::<Vec<_>>(),
            [
                ("copied-to-host", [0, 10, 0]),
                ("copied-to-disk", [0, 4, 6]),
                ("not-on-device", [0, 7, 3]),
                ("unclear", [8, 0, 0]),
            ]
        );
        // In an answer for these tiers alone, the index counts no other tiers.
        let overlaps = vec![Overlap { blocks: 4, ..at("unclear", [4, 2], [3, 1, 0]) }];
        let answer = Answer { overlaps, ..Answer::default() };
        let below = below_device(&answer, &TrustConfig::default(), true);
        assert_eq!(below[0].1, TierBlocks { host: 4, ..TierBlocks::default() });
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
                // Placements come from the router itself, so they are expected whatever events report.
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

    /// A pool's blocks are credited by the pool's trust, whatever the worker's state.
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
        // The pool's only source is gone, but the blocks are still there.
        assert_eq!(shared(SourceState::CatchingUp, false), TierBlocks { pool: 5, ..own });
    }
}
