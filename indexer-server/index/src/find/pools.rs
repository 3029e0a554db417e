//! Queries that also count blocks in pools.

use super::{Query, Scratch, Stretch, ones};
use crate::index::Index;
use crate::roles::Readers;
use crate::sets::{HolderIndex, TierSets};
use crate::shared::SharedBlocks;
use crate::table::index_u32;
use crate::walk::{NOBODY, QueryKey};
use kvasir_proto::types::{Tier, TierSet};

/// The prompt's blocks in pools, for the ranks of one index.
pub(super) struct Pools<'a> {
    shared: &'a SharedBlocks,
    /// The ranks that read each pool, by pool number.
    readers: Vec<Option<&'a Readers>>,
}

impl Pools<'_> {
    /// The readers of the pools in `pools`, which has one bit per pool.
    fn readers(&self, pools: u64) -> impl Iterator<Item = &Readers> {
        ones(0, pools).filter_map(|pool| *self.readers.get(pool as usize)?)
    }

    /// Runs of consecutive blocks in the same pools: whether the rank reads one of the pools, and the end of
    /// the run.
    pub(super) fn runs(
        &self,
        from: u32,
        end: u32,
        holder: HolderIndex,
    ) -> impl Iterator<Item = (bool, u32)> {
        let runs = self.shared.held(from, end).chunk_by(|a, b| a == b);
        runs.scan(from, move |at, run| {
            *at += index_u32(run.len());
            let pools = run.first().copied().unwrap_or(0);
            Some((self.readers(pools).any(|readers| readers.contains(holder)), *at))
        })
    }

    /// Whether a pool that a rank reads has a block.
    pub(super) fn has_block(&self, block: u32, holder: HolderIndex) -> bool {
        let pools = self.shared.held(block, block + 1).first().copied().unwrap_or(0);
        self.readers(pools).any(|readers| readers.contains(holder))
    }
}

impl Scratch {
    /// Continues as [`enter`](Self::enter) does. A rank also holds the blocks in its pools.
    fn enter_shared(
        &mut self,
        (index, pools): (&Index, &Pools<'_>),
        tiers: TierSet,
        sets: TierSets,
        from: u32,
        end: u32,
    ) -> bool {
        let mut from = from;
        for run in pools.shared.held(from, end).chunk_by(|a, b| a == b) {
            let end = from + index_u32(run.len());
            self.set_here(index, tiers, sets);
            for readers in pools.readers(run.first().copied().unwrap_or(0)) {
                readers.union_into(&mut self.here);
            }
            match self.stretches.last_mut() {
                Some(last) if last.sets == sets => last.end = end,
                _ => self.stretches.push(Stretch { sets, end }),
            }
            if !self.stop_others(from) {
                return false;
            }
            from = end;
        }
        true
    }
}

impl Index {
    /// Answers a query whose prompt has blocks in pools. Returns `false` if it was cancelled.
    pub(super) fn find_shared(
        &self,
        query: Query<'_>,
        shared: &SharedBlocks,
        scratch: &mut Scratch,
        is_wanted: impl Fn() -> bool,
    ) -> bool {
        let readers = shared.numbered().map(|pool| self.roles.readers(pool)).collect();
        let pools = Pools { shared, readers };
        let tiers = query.tiers;
        let all = index_u32(shared.blocks());
        match query.key {
            QueryKey::Locals(locals) => {
                let with = (self, &pools);
                let has_limits = self.has_limits();
                let reached = self.walk_locals(locals, |sets, head, from, end| {
                    scratch.path.extend(has_limits.then_some((head, end)));
                    scratch.enter_shared(with, tiers, sets, from, end)
                });
                // Pools of other indexes may have more of the prompt than this trie.
                scratch.enter_shared(with, tiers, NOBODY, reached, all);
            }
            QueryKey::Names(names) => {
                scratch.set_apart_recorded(self);
                for (at, &name) in (0..).zip(names) {
                    let sets = self.holders_of_name(name);
                    if !scratch.enter_shared((self, &pools), tiers, sets, at, at + 1) {
                        break;
                    }
                }
            }
        }
        scratch.finish(self, all, None);
        let Scratch { matches, stretches, .. } = scratch;
        let used = Tier::ALL.map(|tier| tiers.contains(tier));
        matches.iter_mut().for_each(|at| self.count_stretches(at, stretches, used));
        self.count_chunks(tiers, Some(&pools), scratch);
        if !self.limit_matches(query, Some(&pools), used, scratch, &is_wanted) {
            return false;
        }
        match query.key {
            QueryKey::Locals(_) => true,
            QueryKey::Names(names) => {
                self.find_recorded(names, query, Some(&pools), scratch, is_wanted)
            }
        }
    }
}
