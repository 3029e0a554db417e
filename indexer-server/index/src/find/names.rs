//! Queries by the engines' names. Ranks without names of their own are walked together; the others are checked one by
//! one.

use super::blocks::Blocks;
use super::pools::Pools;
use super::{Match, Query, Reuse, Scratch, clear_bit, has_bit};
use crate::chunks::{Positions, Run};
use crate::index::Index;
use crate::sets::HolderIndex;
use crate::slots::Slot;
use crate::source::HolderId;
use crate::table::index_u32;
use kvasir_proto::types::{BlockName, Tier, TierSet};

impl Scratch {
    /// Moves the ranks with records to `recorded`, because they may use their own names. For the other ranks,
    /// a name means the slot that has it.
    pub(super) fn set_apart_recorded(&mut self, index: &Index) {
        self.recorded.clear();
        let holders =
            index.holders.iter().flatten().filter(|holder| holder.records().has_main_group());
        for holder in holders.map(|holder| holder.index()) {
            if has_bit(&self.alive, holder) {
                clear_bit(&mut self.alive, holder);
                self.recorded.push(holder);
            }
        }
    }
}

impl Index {
    /// Walks for the ranks without records. Consecutive names in a segment are compared there; others are
    /// looked up.
    pub(super) fn find_names(
        &self,
        names: &[BlockName],
        tiers: TierSet,
        scratch: &mut Scratch,
    ) -> u32 {
        let mut from = 0;
        let mut rest = names;
        while let Some(slot) = rest.first().and_then(|&first| self.trie.named(first)) {
            let segment = self.trie.segment_of(slot);
            let here = slot..=segment.tail();
            let is_next = |(slot, name): &(Slot, &BlockName)| {
                self.trie.slots.name(*slot) == **name && self.trie.slots.is_named(*slot)
            };
            // The name table has already found the first name.
            let equal = 1 + here.zip(rest).skip(1).take_while(is_next).count();
            let end = from + index_u32(equal);
            if !scratch.enter(self, tiers, segment.sets, from, end) {
                break;
            }
            from = end;
            rest = rest.get(equal..).unwrap_or_default();
        }
        from
    }

    /// Adds the ranks in `recorded`, one by one. Returns `false` if the query was cancelled.
    pub(super) fn find_recorded(
        &self,
        names: &[BlockName],
        query: Query<'_>,
        pools: Option<&Pools<'_>>,
        scratch: &mut Scratch,
        is_wanted: impl Fn() -> bool,
    ) -> bool {
        let Scratch { recorded, matches, runs, positions, minimum_overlap, .. } = scratch;
        for &holder in recorded.iter() {
            if !is_wanted() {
                return false;
            }
            let at = self.match_recorded(HolderId(holder), names, (query, pools), *positions, runs);
            if at.blocks >= *minimum_overlap {
                matches.push(at);
            }
        }
        if !recorded.is_empty() {
            self.sort(matches);
        }
        true
    }

    /// The match of a rank, by its own names, limited to what all its groups serve.
    fn match_recorded(
        &self,
        holder: HolderId,
        names: &[BlockName],
        (query, pools): (Query<'_>, Option<&Pools<'_>>),
        positions: Positions,
        runs: &mut Vec<Run>,
    ) -> Match {
        let at = self.count_recorded(holder.0, names, (query.tiers, pools), positions, runs);
        let all = at.blocks;
        let Some(prompt) = query.prompt.filter(|_| self.has_limits()) else { return at };
        let leading = |tier| {
            let holds = |name: &&BlockName| self.tiers_of(holder.0, **name).contains(tier);
            index_u32(names.iter().take_while(holds).count())
        };
        let held = (all, Tier::ALL.map(leading));
        let limited = self.limit_by_tier(holder, prompt, query.tiers, held, Blocks::Names(names));
        let Some((blocks, reuse)) = limited else { return at };
        let first = names.get(..blocks.min(all) as usize).unwrap_or_default();
        let at = self.count_recorded(holder.0, first, (query.tiers, pools), positions, runs);
        Match { reuse: Some(Reuse { main_group_blocks: all, ..reuse }), ..at }
    }

    /// Counts the leading names that a rank holds, under its own names.
    fn count_recorded(
        &self,
        holder: HolderIndex,
        names: &[BlockName],
        (tiers, pools): (TierSet, Option<&Pools<'_>>),
        positions: Positions,
        runs: &mut Vec<Run>,
    ) -> Match {
        let sizes = self.roles.chunks_of(holder).copied();
        runs.clear();
        let mut at = Match::none(HolderId(holder));
        for (number, &name) in (0..).zip(names) {
            let held = self.tiers_of(holder, name);
            let counted = Tier::ALL.map(|tier| tiers.contains(tier) && held.contains(tier));
            // A pool may have the block even if the tiers have no complete chunk with it.
            let in_pool = (sizes.is_some() || counted == [false; Tier::COUNT])
                && pools.is_some_and(|pools| pools.has_block(number, holder));
            if counted == [false; Tier::COUNT] && !in_pool {
                break;
            }
            at.blocks += 1;
            if sizes.is_some() {
                runs.push(Run { tiers: counted, in_pool, end: at.blocks });
            } else {
                at.count(counted.into_iter(), 1);
            }
        }
        match sizes {
            Some(sizes) => Match::of_chunks(at.holder, runs, sizes, positions),
            None => at,
        }
    }
}
