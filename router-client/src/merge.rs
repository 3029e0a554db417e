//! The answers of all shards as the answer of one index. Pure.

use crate::{Answer, Overlap};
use std::cmp::Reverse;
use std::time::Duration;

/// Puts the answers of shards together. Their workers are others, so the union is what one index of
/// all workers would say, whatever the assignment. While a bucket moves, two shards have its
/// workers: then what the fresher one says holds. `top_k` is that of the question, 0 for all.
///
/// Where a worker was answered twice, `best_overlap_blocks` is that of the workers that are listed.
pub(crate) fn merge(parts: Vec<Answer>, top_k: u32) -> Answer {
    let mut whole = Answer::default();
    for part in parts {
        whole.query_blocks = whole.query_blocks.max(part.query_blocks);
        whole.best_overlap_blocks = whole.best_overlap_blocks.max(part.best_overlap_blocks);
        whole.overlaps.extend(part.overlaps);
        whole.missing_shards.extend(part.missing_shards);
        whole.restoring.extend(part.restoring);
    }
    whole.restoring.sort_unstable();
    whole.restoring.dedup();
    let answered = whole.overlaps.len();
    whole.overlaps.sort_unstable_by(|a, b| a.worker.cmp(&b.worker));
    let mut once: Vec<Overlap> = Vec::with_capacity(answered);
    for same in whole.overlaps.chunk_by(|a, b| a.worker == b.worker) {
        once.extend(freshest(same).cloned());
    }
    if once.len() < answered {
        whole.best_overlap_blocks = once.iter().map(|at| at.blocks).max().unwrap_or(0);
    }
    once.sort_unstable_by(Overlap::order);
    if top_k > 0 {
        once.truncate(usize::try_from(top_k).unwrap_or(usize::MAX));
    }
    whole.overlaps = once;
    whole
}

/// Of what is said about one rank, the freshest: of the best state, in the life that was seen most
/// recently to have nothing newer, that with the most events. Of equals the one that credits least.
fn freshest(same: &[Overlap]) -> Option<&Overlap> {
    let [_, _, ..] = same else { return same.first() };
    let age = |at: &Overlap| at.verified_age.unwrap_or(Duration::MAX);
    let life = |at: &Overlap| at.applied.map(|cursor| cursor.incarnation);
    let best = same.iter().map(|at| at.state).min()?;
    let of_best = || same.iter().filter(|at| at.state == best);
    // Where two lives were seen at the same moment, any rule will do that has no regard to order.
    let latest =
        of_best().min_by_key(|at| (age(at), at.lag_batches, Reverse(life(at).map(|life| life.0))));
    let life_now = life(latest?);
    of_best().filter(|at| life(at) == life_now).min_by_key(|at| {
        let events = at.applied.map(|cursor| cursor.sequence);
        (Reverse(events), at.lag_batches, age(at), at.expected_blocks(), at.blocks)
    })
}

#[cfg(test)]
#[path = "merge_test.rs"]
mod tests;
