//! Queries: counts the leading blocks of a prompt at each rank.
//!
//! A walk compares local hashes segment by segment, and checks holders only at the end of a segment. Most of
//! the work is reading consecutive hashes. No memory is allocated once the scratch space has grown to the
//! size of the answers.

mod blocks;
mod chunks;
mod groups;
mod names;
mod pools;

pub use groups::{Prompt, Reuse};

use crate::chunks::{Positions, Run};
use crate::index::Index;
use crate::sets::{HolderIndex, SetId, TierSets};
use crate::shared::SharedBlocks;
use crate::source::HolderId;
use crate::table::index_u32;
use crate::walk::QueryKey;
use blocks::Path;
use kvasir_proto::types::{Tier, TierSet, WorkerId};
use std::cmp::Reverse;

/// A query.
#[derive(Debug, Clone, Copy)]
pub struct Query<'a> {
    /// The prompt.
    pub key: QueryKey<'a>,
    /// Tiers whose blocks count.
    pub tiers: TierSet,
    /// Only these workers; `None` for all.
    pub workers: Option<&'a [WorkerId]>,
    /// Minimum number of matched blocks to list a rank; 0 lists every rank.
    pub minimum_overlap: u32,
    /// The prompt's blocks in pools, if they count for the ranks that read the pools.
    pub shared: Option<&'a SharedBlocks>,
    /// The prompt in tokens, to count only what all KV-cache groups of a rank serve. `None` counts the main group
    /// alone.
    pub prompt: Option<Prompt>,
}

/// One rank's overlap.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Match {
    /// The rank.
    pub holder: HolderId,
    /// Number of leading blocks that match.
    pub blocks: u32,
    /// Matched blocks in each tier; 0 for tiers outside the query.
    pub by_tier: [u32; Tier::COUNT],
    /// Matched blocks with each tier as their best one, among the query's tiers. The sum with `pool_blocks`
    /// is `blocks`.
    pub by_best_tier: [u32; Tier::COUNT],
    /// Matched blocks that are only in pools.
    pub pool_blocks: u32,
    /// For a rank with several groups, or with facts that limit its matches.
    pub reuse: Option<Reuse>,
}

impl Match {
    const fn none(holder: HolderId) -> Self {
        let nothing = [0; Tier::COUNT];
        Self {
            holder,
            blocks: 0,
            by_tier: nothing,
            by_best_tier: nothing,
            pool_blocks: 0,
            reuse: None,
        }
    }

    /// Counts `blocks` blocks; `held` has one flag per tier.
    fn count(&mut self, held: impl Iterator<Item = bool>, blocks: u32) {
        let mut is_best = true;
        for ((held, count), best) in held.zip(&mut self.by_tier).zip(&mut self.by_best_tier) {
            if held {
                *count += blocks;
                *best += if is_best { blocks } else { 0 };
                is_best = false;
            }
        }
        // Blocks in no tier are in a pool.
        self.pool_blocks += if is_best { blocks } else { 0 };
    }
}

/// Consecutive blocks of the prompt with one set of holders per tier.
#[derive(Debug, Clone, Copy)]
struct Stretch {
    sets: TierSets,
    /// Number of blocks of the prompt up to the end of this stretch.
    end: u32,
}

/// Ranks that match exactly `blocks` leading blocks.
#[derive(Debug, Clone, Copy)]
struct Stopped {
    blocks: u32,
    /// Index of the group of 64 ranks.
    word: u32,
    ranks: u64,
}

/// Buffers for answers, reused between queries.
#[derive(Debug, Default)]
pub struct Scratch {
    matches: Vec<Match>,
    stretches: Vec<Stretch>,
    /// Ranks that have stopped matching, in order of their blocks.
    stopped: Vec<Stopped>,
    /// Ranks that match all blocks so far.
    alive: Vec<u64>,
    /// Ranks that hold the current stretch.
    here: Vec<u64>,
    /// The ranks in `here`, by their places in the order of workers and ranks.
    places: Vec<u64>,
    /// Ranks with records, which are checked one by one.
    recorded: Vec<HolderIndex>,
    /// Minimum number of matched blocks to list a rank.
    minimum_overlap: u32,
    /// How the prompt is divided into positions.
    positions: Positions,
    /// The runs in which one rank caches the prompt, for ranks with chunks.
    runs: Vec<Run>,
    /// The slots along the prompt, if any rank has several groups.
    path: Path,
}

impl Scratch {
    /// The answer to the last query: most blocks first, then by worker id and rank.
    #[must_use]
    pub fn matches(&self) -> &[Match] {
        &self.matches
    }

    /// Resets the scratch memory. All present ranks are candidates, or only the ranks of the query's workers.
    fn begin_query(&mut self, index: &Index, query: Query<'_>) {
        self.minimum_overlap = query.minimum_overlap;
        self.positions.all = index_u32(query.key.len());
        self.matches.clear();
        self.stretches.clear();
        self.path.clear();
        self.stopped.clear();
        self.alive.clear();
        self.here.clear();
        self.here.resize(index.present.len(), 0);
        match query.workers {
            None => self.alive.extend_from_slice(&index.present),
            Some(workers) => {
                self.alive.resize(index.present.len(), 0);
                let ranks = workers.iter().filter_map(|id| index.workers.get(id));
                for &(_, holder) in ranks.flat_map(|worker| &worker.ranks) {
                    set_bit(&mut self.alive, holder);
                }
                // Pools are not candidates, even if the query requests them.
                self.alive.iter_mut().zip(&index.present).for_each(|(alive, all)| *alive &= all);
            }
        }
    }

    /// Continues with `sets` for blocks up to `end`: ranks outside the sets stop at `from`. Returns `false`
    /// once no rank is left.
    fn enter(
        &mut self,
        index: &Index,
        tiers: TierSet,
        sets: TierSets,
        from: u32,
        end: u32,
    ) -> bool {
        if let Some(last) = self.stretches.last_mut().filter(|last| last.sets == sets) {
            last.end = end;
            return true;
        }
        self.set_here(index, tiers, sets);
        self.stretches.push(Stretch { sets, end });
        self.stop_others(from)
    }

    /// Sets `here` to the ranks that hold the current stretch in a tier of the query.
    fn set_here(&mut self, index: &Index, tiers: TierSet, sets: TierSets) {
        self.here.fill(0);
        for (tier, set) in Tier::ALL.into_iter().zip(sets) {
            if tiers.contains(tier) {
                index.trie.sets.union_into(set, &mut self.here);
            }
        }
    }

    /// Stops the ranks outside `here` at `from`. Returns `false` once no rank is left.
    fn stop_others(&mut self, from: u32) -> bool {
        let mut any = 0;
        for (word, (alive, here)) in self.alive.iter_mut().zip(&self.here).enumerate() {
            let ranks = *alive & !here;
            if ranks != 0 && from >= self.minimum_overlap {
                self.stopped.push(Stopped { blocks: from, word: index_u32(word), ranks });
            }
            *alive &= here;
            any |= *alive;
        }
        any != 0
    }

    /// The query's tiers in which any rank holds a block of the prompt.
    fn used(&self, tiers: TierSet) -> [bool; Tier::COUNT] {
        Tier::ALL.map(|tier| {
            let is_held = |at: &Stretch| at.sets.get(tier.index()) != Some(&SetId::EMPTY);
            tiers.contains(tier) && self.stretches.iter().any(is_held)
        })
    }

    /// Lists all ranks, most blocks first, ties in order of worker and rank. Ranks still alive match `blocks`
    /// blocks. With one tier in use (`only`), this also counts by tier.
    fn finish(&mut self, index: &Index, blocks: u32, only: Option<Tier>) {
        if blocks >= self.minimum_overlap {
            self.here.clone_from(&self.alive);
            self.push_here(index, blocks, only);
        }
        let stopped = std::mem::take(&mut self.stopped);
        // Ranks stopped in ascending order of blocks, with one entry per word of the bitmap. The list is descending, so
        // entries with equal blocks are merged from the end.
        let mut rest = stopped.as_slice();
        while let Some(last) = rest.last() {
            let same = rest.iter().rev().take_while(|at| at.blocks == last.blocks).count();
            let (before, level) = rest.split_at(rest.len() - same);
            self.here.fill(0);
            for at in level {
                if let Some(word) = self.here.get_mut(at.word as usize) {
                    *word = at.ranks;
                }
            }
            self.push_here(index, last.blocks, only);
            rest = before;
        }
        self.stopped = stopped;
    }

    /// Lists the ranks in `here`, in order of worker and rank.
    fn push_here(&mut self, index: &Index, blocks: u32, only: Option<Tier>) {
        let Self { matches, here, places, .. } = self;
        let by_tier = Tier::ALL.map(|tier| if only == Some(tier) { blocks } else { 0 });
        let by_best_tier = by_tier;
        let listed =
            |at: HolderIndex| Match { blocks, by_tier, by_best_tier, ..Match::none(HolderId(at)) };
        let count: u32 = here.iter().map(|word| word.count_ones()).sum();
        // The bitmap is in order of holder numbers. If these are not in order of worker and rank, many ranks are listed
        // by a scan of all ranks, and few by sorting their places.
        if index.listing.is_by_index() || count < 2 {
            matches.extend(bits(here).map(listed));
        } else if count as usize * SCAN_FRACTION >= index.listing.len() {
            let is_here = |at: &HolderIndex| has_bit(here, *at);
            matches.extend(index.listing.iter().filter(is_here).map(listed));
        } else {
            places.clear();
            places.resize(here.len(), 0);
            let place = |rank| index.listing.place(rank);
            bits(here).filter_map(place).for_each(|place| set_bit(places, place));
            let rank = |place| index.listing.at(place);
            matches.extend(bits(places).filter_map(rank).map(listed));
        }
    }
}

/// If at least one rank in this many is listed, scanning all ranks in order is faster than looking up each
/// place.
const SCAN_FRACTION: usize = 2;

/// Indexes of the set bits.
fn bits(bitmap: &[u64]) -> impl Iterator<Item = u32> {
    bitmap.iter().zip(0..).flat_map(|(&word, at)| ones(at, word))
}

/// Indexes of the set bits in word `at`.
fn ones(at: u32, word: u64) -> impl Iterator<Item = u32> {
    let rest = std::iter::successors(Some(word), |word| Some(word & word.wrapping_sub(1)));
    let set = rest.take_while(|&word| word != 0);
    set.map(move |word| at * 64 + word.trailing_zeros())
}

fn has_bit(bitmap: &[u64], holder: HolderIndex) -> bool {
    bitmap.get(holder as usize / 64).is_some_and(|word| word & 1 << (holder % 64) != 0)
}

fn set_bit(bitmap: &mut [u64], bit: u32) {
    if let Some(word) = bitmap.get_mut(bit as usize / 64) {
        *word |= 1 << (bit % 64);
    }
}

fn clear_bit(bitmap: &mut [u64], holder: HolderIndex) {
    if let Some(word) = bitmap.get_mut(holder as usize / 64) {
        *word &= !(1 << (holder % 64));
    }
}

impl Index {
    /// Answers a query into `scratch`.
    pub fn find(&self, query: Query<'_>, scratch: &mut Scratch) {
        self.find_while(query, scratch, || true);
    }

    /// Answers a query into `scratch`, unless `is_wanted` returns `false`. It is checked where a query is
    /// slow: before each rank with its own names or with several KV-cache groups. Returns whether `scratch` has the answer.
    pub fn find_while(
        &self,
        query: Query<'_>,
        scratch: &mut Scratch,
        is_wanted: impl Fn() -> bool,
    ) -> bool {
        scratch.positions.per_block = 1;
        self.find_positions(query, scratch, is_wanted)
    }

    /// Answers a query as [`find_while`](Self::find_while) does, for engines that hash each block with the token after
    /// it (look-ahead). Such a block takes two positions of the key: its content (stem), then the next token (leaf). All
    /// counts are of positions.
    pub fn find_ahead_while(
        &self,
        query: Query<'_>,
        scratch: &mut Scratch,
        is_wanted: impl Fn() -> bool,
    ) -> bool {
        scratch.positions.per_block = 2;
        self.find_positions(query, scratch, is_wanted)
    }

    /// Answers a query: with pools, by local hashes, or by names. For names, ranks with records are excluded from the
    /// walk, because they may use names of their own, and are checked one by one at the end.
    fn find_positions(
        &self,
        query: Query<'_>,
        scratch: &mut Scratch,
        is_wanted: impl Fn() -> bool,
    ) -> bool {
        scratch.begin_query(self, query);
        // If the pools have no block of the prompt, the ordinary query suffices.
        if let Some(shared) = query.shared.filter(|shared| !shared.is_empty()) {
            return self.find_shared(query, shared, scratch, is_wanted);
        }
        match query.key {
            QueryKey::Locals(locals) => {
                let has_limits = self.has_limits();
                let reached = self.walk_locals(locals, |sets, head, from, end| {
                    scratch.path.extend(has_limits.then_some((head, end)));
                    scratch.enter(self, query.tiers, sets, from, end)
                });
                self.finish(reached, query, scratch, is_wanted)
            }
            QueryKey::Names(names) => {
                scratch.set_apart_recorded(self);
                let reached = self.find_names(names, query.tiers, scratch);
                self.finish(reached, query, scratch, &is_wanted)
                    && self.find_recorded(names, query, None, scratch, is_wanted)
            }
        }
    }

    /// Lists the ranks, and counts each one's blocks by tier. Returns `false` if the query is not wanted any more.
    fn finish(
        &self,
        reached: u32,
        query: Query<'_>,
        scratch: &mut Scratch,
        is_wanted: impl Fn() -> bool,
    ) -> bool {
        let tiers = query.tiers;
        let used = scratch.used(tiers);
        let mut used_tiers = Tier::ALL.into_iter().zip(used).filter(|&(_, used)| used);
        let only = used_tiers.next().filter(|_| used_tiers.next().is_none()).map(|(tier, _)| tier);
        scratch.finish(self, reached, only);
        if only.is_none() {
            let Scratch { matches, stretches, .. } = scratch;
            matches.iter_mut().for_each(|at| self.count_stretches(at, stretches, used));
        }
        self.count_chunks(tiers, None, scratch);
        self.limit_matches(query, None, used, scratch, is_wanted)
    }

    /// Sorts ranks: most blocks first, ties in order of worker and rank.
    fn sort(&self, matches: &mut [Match]) {
        matches.sort_unstable_by_key(|at| (Reverse(at.blocks), self.listing.place(at.holder.0)));
    }

    /// Counts a rank's matched blocks by tier, stretch by stretch.
    fn count_stretches(&self, at: &mut Match, stretches: &[Stretch], used: [bool; Tier::COUNT]) {
        let mut from = 0;
        let blocks = at.blocks;
        let holder = at.holder.0;
        for stretch in stretches {
            // With pools, a rank may stop inside a stretch.
            let end = stretch.end.min(blocks);
            if end <= from {
                break;
            }
            let sets = stretch.sets.iter().zip(used);
            let held = sets.map(|(&set, used)| used && self.trie.sets.contains(set, holder));
            at.count(held, end - from);
            from = end;
        }
        let counted = at.by_best_tier.iter().sum::<u32>() + at.pool_blocks;
        debug_assert_eq!(counted, at.blocks, "each block is in a tier or a pool");
    }
}
