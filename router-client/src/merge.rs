//! Merges the answers of all shards into the answer of one index. Pure.

use crate::overlap::{Answer, Overlap};
use kvasir_proto::convert::PoolState;
use std::cmp::Reverse;
use std::time::Duration;

/// Merges the answers of shards. Each worker belongs to one shard, so the union equals the answer of one index with all
/// workers. While a bucket moves, two shards list its workers; then the fresher entry counts. `top_k` is the query's
/// limit, 0 for all workers.
///
/// If a worker is listed twice, `best_overlap_blocks` is computed from the entries that count.
pub(crate) fn merge(parts: Vec<Answer>, top_k: u32) -> Answer {
    let mut merged = Answer::default();
    for part in parts {
        merged.query_blocks = merged.query_blocks.max(part.query_blocks);
        merged.best_overlap_blocks = merged.best_overlap_blocks.max(part.best_overlap_blocks);
        merged.overlaps.extend(part.overlaps);
        merged.missing_shards.extend(part.missing_shards);
        merged.restoring.extend(part.restoring);
        merged.pools.extend(part.pools);
    }
    merge_pools(&mut merged.pools);
    merged.restoring.sort_unstable();
    merged.restoring.dedup();
    let answered = merged.overlaps.len();
    merged.overlaps.sort_unstable_by(|a, b| a.worker.cmp(&b.worker));
    let mut unique: Vec<Overlap> = Vec::with_capacity(answered);
    for same in merged.overlaps.chunk_by(|a, b| a.worker == b.worker) {
        unique.extend(freshest(same).cloned());
    }
    if unique.len() < answered {
        merged.best_overlap_blocks = unique.iter().map(|at| at.blocks).max().unwrap_or(0);
    }
    unique.sort_unstable_by(Overlap::order);
    if top_k > 0 {
        unique.truncate(usize::try_from(top_k).unwrap_or(usize::MAX));
    }
    debug_assert!(unique.is_sorted_by(|a, b| a.order(b).is_lt()), "best first, each rank once");
    merged.overlaps = unique;
    merged
}

/// Merges the entries of each pool, which every shard lists. The least fresh entry counts, because the workers of its
/// shard are credited by it.
fn merge_pools(pools: &mut Vec<PoolState>) {
    let age = |at: &PoolState| at.verified_age.unwrap_or(Duration::MAX);
    pools.sort_unstable_by(|a, b| {
        let worst = (b.state, !b.connected, b.lag_batches, age(b)).cmp(&(
            a.state,
            !a.connected,
            a.lag_batches,
            age(a),
        ));
        a.pool.cmp(&b.pool).then(worst).then(a.held_blocks.cmp(&b.held_blocks))
    });
    pools.dedup_by(|later, first| later.pool == first.pool);
}

/// Returns the freshest of the entries for one rank. Order: best state; most recently verified incarnation; most
/// events; fewest blocks.
fn freshest(same: &[Overlap]) -> Option<&Overlap> {
    let [first, _, ..] = same else { return same.first() };
    debug_assert!(same.iter().all(|at| at.worker == first.worker), "entries of one rank");
    let age = |at: &Overlap| at.verified_age.unwrap_or(Duration::MAX);
    let incarnation = |at: &Overlap| at.applied.map(|cursor| cursor.incarnation);
    let best = same.iter().map(|at| at.state).min()?;
    let of_best = || same.iter().filter(|at| at.state == best);
    // If two incarnations were verified at the same moment, the rule only has to be independent of the order.
    let latest = of_best()
        .min_by_key(|at| (age(at), at.lag_batches, Reverse(incarnation(at).map(|at| at.0))));
    let current = incarnation(latest?);
    of_best().filter(|at| incarnation(at) == current).min_by_key(|at| {
        let events = at.applied.map(|cursor| cursor.sequence);
        (Reverse(events), at.lag_batches, age(at), at.expected_blocks(), at.blocks)
    })
}

#[cfg(test)]
#[path = "merge_test.rs"]
mod tests;
