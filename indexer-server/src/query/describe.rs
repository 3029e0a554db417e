use crate::partitions::{Origin, Partition};
use kvasir_proto::types::{DpRank, SourceState, SourceStatus, StateReason, WorkerId};
use std::time::Duration;

/// One rank of a worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RankView {
    /// Number of the data-parallel rank.
    pub rank: DpRank,
    /// Cached blocks with a known position.
    pub placed_blocks: u64,
    /// Cached block names without a known position (parked).
    pub parked_blocks: u64,
    /// Blocks that were evicted from the index for the byte budget.
    pub shed_blocks: u64,
}

/// One source of events of a worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceView {
    /// Name of the source.
    pub name: String,
    /// State and cursor of the source.
    pub status: SourceStatus,
    /// Time since the source was last known to have no newer batch.
    pub verified_age: Option<Duration>,
    /// Reasons for a state worse than exact, with their ages where known.
    pub reasons: Vec<(StateReason, Option<Duration>)>,
}

/// Ranks and sources of a worker, as the index has them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct WorkerDescription {
    /// Ranks of the worker, in order.
    pub ranks: Vec<RankView>,
    /// Sources of the worker, in order of arrival.
    pub sources: Vec<SourceView>,
}

/// Describes a worker's ranks and sources. Empty if no source feeds the worker yet.
#[must_use]
pub fn describe(partition: &Partition, worker: &WorkerId, origin: Origin) -> WorkerDescription {
    let index = partition.shard_of(worker).read();
    let Some(worker) = index.worker(worker) else {
        return WorkerDescription::default();
    };
    let ranks = worker.holders().map(|rank| RankView {
        rank: rank.rank(),
        placed_blocks: rank.placed_blocks(),
        parked_blocks: rank.parked_blocks(),
        shed_blocks: rank.shed_blocks(),
    });
    let now = origin.elapsed();
    let sources = worker.sources().map(|(id, name, status)| {
        let own = worker.own_reasons(id);
        let is_partial = !own.is_empty();
        let reasons = status.all_reasons().into_iter().chain(own).map(|seen| {
            let is_known = seen.since > Duration::ZERO;
            let age = is_known.then(|| now.saturating_sub(seen.since));
            (seen, age)
        });
        let worst = if is_partial { SourceState::Partial } else { SourceState::Exact };
        SourceView {
            name: name.to_owned(),
            reasons: reasons.collect(),
            status: SourceStatus { state: status.state.max(worst), ..status.clone() },
            verified_age: status.verified_at.map(|at| now.saturating_sub(at)),
        }
    });
    WorkerDescription { ranks: ranks.collect(), sources: sources.collect() }
}
