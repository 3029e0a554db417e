//! Counts matches for ranks whose connector loads only complete chunks.

use super::pools::Pools;
use super::{Match, Scratch, Stretch};
use crate::chunks::{ChunkSizes, Positions, Run, count_complete};
use crate::index::Index;
use crate::source::HolderId;
use kvasir_proto::types::{Tier, TierSet};

impl Match {
    /// Counts the match of a rank from its runs. Only complete chunks of the given sizes count.
    pub(super) fn of_chunks(
        holder: HolderId,
        runs: &[Run],
        sizes: ChunkSizes,
        positions: Positions,
    ) -> Self {
        let mut at = Self::none(holder);
        count_complete(runs, sizes, positions, |tiers, blocks| {
            at.blocks += blocks;
            at.count(tiers.into_iter(), blocks);
        });
        at
    }
}

impl Index {
    /// Recounts the listed ranks with chunks: in a tier with chunks, only complete chunks count. Without such
    /// workers, does nothing.
    pub(super) fn count_chunks(
        &self,
        tiers: TierSet,
        pools: Option<&Pools<'_>>,
        scratch: &mut Scratch,
    ) {
        if !self.roles.has_chunks() {
            return;
        }
        let Scratch { matches, stretches, runs, positions, minimum_overlap, .. } = scratch;
        let mut is_ordered = true;
        for at in matches.iter_mut() {
            let Some(&sizes) = self.roles.chunks_of(at.holder.0) else { continue };
            self.replace_runs(at, stretches, tiers, pools, runs);
            let counted = Match::of_chunks(at.holder, runs, sizes, *positions);
            is_ordered &= counted.blocks == at.blocks;
            *at = counted;
        }
        if !is_ordered {
            matches.retain(|at| at.blocks >= *minimum_overlap);
            self.sort(matches);
        }
    }

    /// Replaces `runs` by the runs of a rank's matched blocks. Blocks of one run are cached in the same tiers, of
    /// which only `tiers` count, and are equally available in a pool. The runs end at the last matched block.
    pub(super) fn replace_runs(
        &self,
        at: &Match,
        stretches: &[Stretch],
        tiers: TierSet,
        pools: Option<&Pools<'_>>,
        runs: &mut Vec<Run>,
    ) {
        runs.clear();
        let mut from = 0;
        let holder = at.holder.0;
        for stretch in stretches {
            let end = stretch.end.min(at.blocks);
            if end <= from {
                break;
            }
            let sets = Tier::ALL.map(|tier| (tier, stretch.sets.get(tier.index())));
            let held = sets.map(|(tier, set)| {
                tiers.contains(tier) && set.is_some_and(|&set| self.trie.sets.contains(set, holder))
            });
            let run = |(in_pool, end)| Run { tiers: held, in_pool, end };
            match pools {
                None => runs.push(run((false, end))),
                Some(pools) => runs.extend(pools.runs(from, end, holder).map(run)),
            }
            from = end;
        }
    }
}
