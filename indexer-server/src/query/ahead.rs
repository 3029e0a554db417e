//! Look-ahead blocks: some engines hash each block with the token after it. Their ranks have two positions for each
//! block, which a second walk of the index follows ([`kvasir_proto::hash::stem`]).

use kvasir_index::{Index, Match, Query, QueryKey, Scratch};
use kvasir_proto::convert::{FindQuery, QueryInput};
use kvasir_proto::hash::stem;
use kvasir_proto::types::{LocalHash, Tier};
use std::cmp::Reverse;

/// The second walk of one query.
#[derive(Default)]
pub(super) struct Ahead {
    scratch: Scratch,
    positions: Vec<LocalHash>,
    matches: Vec<Match>,
    /// Whether the query states the token after each block; `None` until a rank needs the token.
    is_known: Option<bool>,
}

impl Ahead {
    /// Resets the state for a new query.
    pub(super) fn reset(&mut self) {
        self.is_known = None;
    }

    /// Whether ranks were left out because the query lacks the token after each block.
    pub(super) fn is_lacking(&self) -> bool {
        self.is_known == Some(false)
    }

    /// Adds the matches of look-ahead ranks to the matches `found` in one index. Returns `found` unchanged for a query
    /// by names, or if the index lacks the prompt's first block. Returns `None` as soon as `is_wanted` is false.
    pub(super) fn add<'a>(
        &'a mut self,
        index: &Index,
        (query, block_size): (&FindQuery, u32),
        requested: Query<'_>,
        found: &'a [Match],
        is_wanted: impl Fn() -> bool,
    ) -> Option<&'a [Match]> {
        let QueryKey::Locals(locals) = requested.key else { return Some(found) };
        let is_held = |first: &LocalHash| index.has_first(stem(*first));
        if !locals.first().is_some_and(is_held) || matches!(query.input, QueryInput::Names(_)) {
            return Some(found);
        }
        let positions = &mut self.positions;
        let known = *self
            .is_known
            .get_or_insert_with(|| query.look_ahead_positions(block_size, locals, positions));
        if !known {
            return Some(found);
        }
        let key = QueryKey::Locals(&self.positions);
        let ahead = Query { key, minimum_overlap: 1, shared: None, ..requested };
        if !index.find_ahead_while(ahead, &mut self.scratch, is_wanted) {
            return None;
        }
        self.matches.clear();
        let positions = index_u32(self.positions.len());
        let blocks = self.scratch.matches().iter().map(|at| blocks_of(at, positions));
        let least = requested.minimum_overlap.max(1);
        let mut ahead: Vec<Match> = blocks.filter(|at| at.blocks >= least).collect();
        ahead.sort_unstable_by_key(|at| at.holder);
        // A rank may hold plain blocks, too: the longer match counts.
        for at in found {
            match ahead.binary_search_by_key(&at.holder, |at| at.holder) {
                Ok(same) if ahead.get(same).is_some_and(|ahead| ahead.blocks >= at.blocks) => {}
                Ok(same) => {
                    ahead.remove(same);
                    self.matches.push(*at);
                }
                Err(_) => self.matches.push(*at),
            }
        }
        self.matches.append(&mut ahead);
        self.matches.sort_by_cached_key(|at| {
            let holder = index.holder(at.holder);
            (Reverse(at.blocks), holder.map(|at| (at.worker().clone(), at.rank())))
        });
        Some(&self.matches)
    }
}

fn index_u32(length: usize) -> u32 {
    u32::try_from(length).unwrap_or(u32::MAX)
}

/// Converts a match over positions to blocks, for a query with `positions` positions. If the last position is a stem,
/// the stem alone counts as a block. Exact if all positions are in one tier.
fn blocks_of(held: &Match, positions: u32) -> Match {
    let half = |count: u32| if count == positions { count.div_ceil(2) } else { count / 2 };
    let blocks = half(held.blocks);
    let by_tier = held.by_tier.map(|count| half(count).min(blocks));
    let mut left = blocks;
    let mut by_best_tier = [0; Tier::COUNT];
    for (best, count) in by_best_tier.iter_mut().zip(held.by_best_tier) {
        *best = count.div_ceil(2).min(left);
        left -= *best;
    }
    Match { blocks, by_tier, by_best_tier, ..*held }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kvasir_index::HolderId;
    use kvasir_proto::hash::leaf;
    use kvasir_proto::types::{
        BlockName, CopyMode, KvEvent, PartitionKey, StoredBlock, TierSet, WorkerId,
    };

    fn chain(base: u64, next: &[u32]) -> KvEvent {
        let mut blocks = Vec::new();
        for (at, &next) in (0..).zip(next) {
            let name = BlockName(base + at);
            let local = LocalHash(at + 1);
            let stem_name = kvasir_proto::hash::stem_name(name);
            blocks.push(StoredBlock { name: stem_name, local: stem(local) });
            blocks.push(StoredBlock { name, local: leaf(next) });
        }
        KvEvent::Stored { parent: None, tier: Tier::Device, blocks }
    }

    fn ask(index: &Index, blocks: u64, next_tokens: Option<Vec<u32>>) -> (Vec<u32>, bool) {
        ask_beside(index, blocks, next_tokens, &[])
    }

    /// Queries with the given matches of the first walk.
    fn ask_beside(
        index: &Index,
        blocks: u64,
        next_tokens: Option<Vec<u32>>,
        found: &[Match],
    ) -> (Vec<u32>, bool) {
        let locals: Vec<LocalHash> = (1..=blocks).map(LocalHash).collect();
        let query = FindQuery {
            partition: PartitionKey::new("m", "").expect("a short name"),
            block_size: None,
            input: QueryInput::Locals(locals.clone()),
            tiers: TierSet::ALL,
            workers: None,
            minimum_overlap_blocks: 1,
            top_k: None,
            shared: false,
            next_tokens,
            explain: false,
            prompt_tokens: None,
        };
        let requested = Query {
            key: QueryKey::Locals(&locals),
            tiers: TierSet::ALL,
            workers: None,
            minimum_overlap: 1,
            shared: None,
            prompt: None,
        };
        let mut ahead = Ahead::default();
        ahead.reset();
        let found = ahead.add(index, (&query, 4), requested, found, || true).expect("wanted");
        let found = found.iter().map(|at| at.blocks).collect();
        (found, ahead.is_lacking())
    }

    fn some_holder(index: &Index) -> HolderId {
        let first = [stem(LocalHash(1))];
        let query = Query {
            key: QueryKey::Locals(&first),
            tiers: TierSet::ALL,
            workers: None,
            minimum_overlap: 1,
            shared: None,
            prompt: None,
        };
        let mut scratch = Scratch::default();
        index.find(query, &mut scratch);
        scratch.matches().first().expect("a rank").holder
    }

    #[test]
    fn a_block_counts_only_if_the_next_token_agrees() {
        let mut index = Index::default();
        let worker = WorkerId::new("w").expect("a name");
        let source = index.add_source(&worker, "s", 0, CopyMode::Counted).expect("a source");
        index.apply(source, 0, &chain(100, &[7, 8, 9])).expect("stored");
        assert_eq!(ask(&index, 3, Some(vec![7, 8, 9])), (vec![3], false));
        assert_eq!(ask(&index, 3, Some(vec![7, 8, 1])), (vec![2], false));
        assert_eq!(ask(&index, 3, Some(vec![7, 1, 9])), (vec![1], false));
        assert_eq!(ask(&index, 3, Some(vec![1, 8, 9])), (vec![0; 0], false));
        // A prompt that ends with a block matches this block with any next token.
        assert_eq!(ask(&index, 3, Some(vec![7, 8])), (vec![3], false));
        assert_eq!(ask(&index, 1, None), (vec![1], false));
        assert_eq!(ask(&index, 3, None), (vec![0; 0], true));
        // A rank that the first walk lists stays listed, with the longer match.
        let holder = some_holder(&index);
        let found = |blocks| Match {
            holder,
            blocks,
            by_tier: [blocks, 0, 0],
            by_best_tier: [blocks, 0, 0],
            pool_blocks: 0,
            reuse: None,
        };
        let asked = |next, plain| ask_beside(&index, 3, Some(next), &[found(plain)]).0;
        assert_eq!(asked(vec![1, 8, 9], 0), [0]);
        assert_eq!(asked(vec![7, 1, 9], 0), [1]);
        assert_eq!(asked(vec![7, 1, 9], 2), [2], "it holds plain blocks, too");
    }

    #[test]
    fn blocks_in_a_tier_are_pairs_of_positions() {
        let mut index = Index::default();
        let worker = WorkerId::new("w").expect("a name");
        let source = index.add_source(&worker, "s", 0, CopyMode::Counted).expect("a source");
        index.apply(source, 0, &chain(100, &[7, 8, 9])).expect("stored");
        let holder = some_holder(&index);
        let by_tier = [5, 3, 0];
        let by_best_tier = [5, 0, 0];
        let held = Match { holder, blocks: 5, by_tier, by_best_tier, pool_blocks: 0, reuse: None };
        assert_eq!(blocks_of(&held, 5).by_tier, [3, 1, 0]);
        assert_eq!(blocks_of(&held, 6).by_tier, [2, 1, 0]);
    }
}
