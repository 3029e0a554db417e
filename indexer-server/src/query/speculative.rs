//! Adds speculative matches from placements to the confirmed matches of a query.

use kvasir_index::PlacedMatch;
use kvasir_proto::convert::{FindQuery, WorkerMatch};
use kvasir_proto::types::{WorkerId, WorkerKey};
use std::cmp::Reverse;
use std::collections::HashSet;

/// Adds speculative matches to the confirmed matches of a query. `matches` must be all ranks with a confirmed block, or
/// all ranks if the query asks for all. Then filters and orders by the larger of confirmed and speculative blocks.
/// `unconfirmed` creates the match of a rank that is not in `matches`.
pub(super) fn add(
    matches: &mut Vec<WorkerMatch>,
    placed: &[PlacedMatch],
    query: &FindQuery,
    unconfirmed: impl Fn(&WorkerKey) -> WorkerMatch,
) {
    let requested: Option<HashSet<&WorkerId>> =
        query.workers.as_ref().map(|ids| ids.iter().collect());
    matches.sort_unstable_by(|a, b| (&a.worker, a.rank).cmp(&(&b.worker, b.rank)));
    let confirmed = matches.len();
    for at in placed {
        if requested.as_ref().is_some_and(|requested| !requested.contains(&at.worker.worker)) {
            continue;
        }
        let known = matches.get_mut(..confirmed).unwrap_or_default();
        let key = (&at.worker.worker, at.worker.rank);
        match known.binary_search_by(|found| (&found.worker, found.rank).cmp(&key)) {
            Ok(found) => {
                if let Some(found) = known.get_mut(found) {
                    found.speculative_blocks = at.blocks;
                }
            }
            Err(_) => {
                let speculative_blocks = at.blocks;
                matches.push(WorkerMatch { speculative_blocks, ..unconfirmed(&at.worker) });
            }
        }
    }
    matches.retain(|found| found.expected_blocks() >= query.minimum_overlap_blocks);
    matches.sort_unstable_by(|a, b| {
        let order = Reverse(a.expected_blocks()).cmp(&Reverse(b.expected_blocks()));
        order.then_with(|| (&a.worker, a.rank).cmp(&(&b.worker, b.rank)))
    });
    matches.truncate(query.top_k.unwrap_or(usize::MAX));
}
