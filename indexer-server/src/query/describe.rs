use crate::partitions::{Origin, Partition};
use kvasir_proto::types::{DpRank, SourceState, SourceStatus, StateReason, WorkerId};
use std::time::Duration;

/// One rank of a worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RankView {
    /// Its number.
    pub rank: DpRank,
    /// Positions held.
    pub placed_blocks: u64,
    /// Names held that are not placed.
    pub parked_blocks: u64,
    /// Blocks that were shed for the byte budget.
    pub shed_blocks: u64,
}

/// One source of a worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceView {
    /// Its name.
    pub name: String,
    /// Its status.
    pub status: SourceStatus,
    /// Time since it was last seen to have nothing newer.
    pub verified_age: Option<Duration>,
    /// Why it is worse than exact: reasons with their ages, as far as these are known.
    pub reasons: Vec<(StateReason, Option<Duration>)>,
}

/// What the index knows of a worker.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct WorkerDescription {
    /// Its ranks, in order.
    pub ranks: Vec<RankView>,
    /// Its sources, in order of arrival.
    pub sources: Vec<SourceView>,
}

/// Describes a worker; empty if nothing feeds it yet.
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
