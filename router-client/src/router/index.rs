use crate::client::IndexerClient;
use crate::error::ClientError;
use crate::overlap::{Answer, Overlap};
use crate::prompt::Prompt;
use crate::route::TierBlocks;
use crate::sharded::ShardedClient;
use kvasir_proto::types::WorkerKey;
use std::collections::HashMap;
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
    },
    /// It did not: the decision is by load alone.
    Failed(ClientError),
}

/// What the ranks hold of a prompt.
#[derive(Debug)]
pub(super) struct Overlaps {
    by_rank: HashMap<WorkerKey, TierBlocks>,
    pub(super) index_use: IndexUse,
}

impl Index {
    pub(super) async fn overlaps(&self, prompt: &Prompt<'_>) -> Overlaps {
        let begin = Instant::now();
        // A rank that the answer left out would count as holding nothing.
        let all = Prompt { minimum_overlap_blocks: 1, top_k: 0, ..*prompt };
        let answer = match self {
            Self::None => return Overlaps::not_needed(),
            Self::One(client) => client.find(&all).await,
            Self::Sharded(client) => client.find(&all).await,
        };
        match answer {
            Ok(answer) => Overlaps::answered(answer, begin.elapsed()),
            Err(error) => {
                tracing::debug!(%error, "the index does not answer: load alone decides");
                Overlaps { by_rank: HashMap::new(), index_use: IndexUse::Failed(error) }
            }
        }
    }
}

impl Overlaps {
    pub(super) fn not_needed() -> Self {
        Self { by_rank: HashMap::new(), index_use: IndexUse::NotNeeded }
    }

    fn answered(answer: Answer, elapsed: Duration) -> Self {
        let Answer { overlaps, missing_shards, .. } = answer;
        let index_use = IndexUse::Answered { elapsed, missing_shards };
        let held = |at: Overlap| {
            let [device, host, disk] = at.blocks_by_best_tier;
            // What placements announce is expected in device memory.
            let blocks = TierBlocks { device, host, disk }.expecting(at.speculative_blocks);
            (at.worker, blocks)
        };
        Self { by_rank: overlaps.into_iter().map(held).collect(), index_use }
    }

    pub(super) fn of(&self, rank: &WorkerKey) -> TierBlocks {
        self.by_rank.get(rank).copied().unwrap_or_default()
    }
}
