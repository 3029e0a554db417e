//! Counts matches for ranks whose connector loads only complete chunks.

use super::pools::Pools;
use super::{Match, Scratch, Stretch};
use crate::chunks::{ChunkSizes, Positions, Run, count_complete};
use crate::index::Index;
use crate::source::HolderId;
use kvasir_proto::types::{Tier, TierSet};

impl Match {
    /// The match of a rank with these runs, counting only complete chunks of these sizes.
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
        (tiers, pools): (TierSet, Option<&Pools<'_>>),
        scratch: &mut Scratch,
    ) {
        if !self.roles.has_chunks() {
            return;
        }
        let Scratch { matches, stretches, runs, positions, minimum_overlap, .. } = scratch;
        let mut is_ordered = true;
        for at in matches.iter_mut() {
            let Some(&sizes) = self.roles.chunks_of(at.holder.0) else { continue };
            self.write_runs(at, stretches, (tiers, pools), runs);
            let counted = Match::of_chunks(at.holder, runs, sizes, *positions);
            is_ordered &= counted.blocks == at.blocks;
            *at = counted;
        }
        if !is_ordered {
            matches.retain(|at| at.blocks >= *minimum_overlap);
            self.sort(matches);
        }
    }

    /// Writes the runs in which a rank caches its leading blocks.
    fn write_runs(
        &self,
        at: &Match,
        stretches: &[Stretch],
        (tiers, pools): (TierSet, Option<&Pools<'_>>),
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
