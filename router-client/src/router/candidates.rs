//! The candidates of a decision: ranks with their cached blocks, load and possible fetches.

use super::workers::{Holders, Member};
use crate::route::{
    ActiveLoads, Candidate, Candidates, Fetch, FetchConfig, FetchPeer, FetchPlan, FetchPlanner,
    Fetcher, NoFetch, Outliers, RankId, Segment, SharedBlocks, TierBlocks, Trust, Vitals,
};
use std::time::Duration;

/// The ranks of a decision.
pub(super) struct Members<'a> {
    pub(super) members: &'a [Member],
    /// Rank ids and capacities in blocks, by candidate number.
    pub(super) ranks: &'a [(RankId, u64)],
    /// Whether no worker failed recently, and no rank joined so recently that its age counts.
    pub(super) are_settled: bool,
    pub(super) held: Holders,
    pub(super) shared: SharedBlocks,
    pub(super) active: &'a ActiveLoads,
    /// `None` if no worker failed recently.
    pub(super) outliers: Option<&'a Outliers>,
    /// `None` if no fetch is planned for the request.
    pub(super) plans: Option<Plans>,
    pub(super) now: Duration,
}

/// Plans the blocks that ranks would fetch for a prompt.
pub(super) struct Plans {
    pub(super) planner: FetchPlanner,
    pub(super) config: FetchConfig,
}

impl Members<'_> {
    /// Returns the best fetch for a member, or why there is none.
    fn fetch(&self, number: usize) -> Result<Fetch, NoFetch> {
        let Plans { planner, config } = self.plans.as_ref().ok_or(NoFetch::NotAsked)?;
        let member = self.members.get(number).ok_or(NoFetch::NotAsked)?;
        let Vitals { shared_blocks, overlap, .. } = self.vitals(number).ok_or(NoFetch::NotAsked)?;
        planner.plan(&Fetcher {
            worker: member.number,
            kind: member.kind,
            own_blocks: overlap.expecting(shared_blocks).total(),
            prefill: config.prefill(self.active.prefill_tokens_per_second(member.rank)),
        })
    }

    /// Returns the best fetch for a member, with names and addresses, or why there is none.
    pub(super) fn plan(&self, number: usize) -> Result<FetchPlan, NoFetch> {
        let fetch = self.fetch(number)?;
        let Plans { planner, .. } = self.plans.as_ref().ok_or(NoFetch::NotAsked)?;
        let peer = |at: &Segment| {
            let member = self.members.get(at.candidate)?;
            let worker = member.worker.key.clone();
            let address = member.peer()?.clone();
            Some(FetchPeer { worker, address, blocks: at.blocks })
        };
        let peers: Vec<_> = fetch.segments().iter().filter_map(peer).collect();
        debug_assert_eq!(peers.len(), fetch.segments().len(), "who serves has an address");
        Ok(FetchPlan {
            first_block: fetch.first_block,
            blocks: fetch.blocks,
            recompute_blocks: planner.recompute_blocks(&fetch),
            peers,
            expected: Duration::from_secs_f64(fetch.seconds),
            compute: Duration::try_from_secs_f64(fetch.compute_seconds).unwrap_or(Duration::MAX),
            block_bytes: fetch.block_bytes,
            bandwidth: planner.bandwidth(),
            prefill: fetch.prefill,
        })
    }
}

impl Candidates for Members<'_> {
    fn count(&self) -> usize {
        self.members.len()
    }

    fn at(&self, number: usize) -> Option<Candidate<'_>> {
        let member = self.members.get(number)?;
        let worker = &member.worker;
        let Vitals { load, shared_blocks, overlap, .. } = self.vitals(number)?;
        let is_ejected = |outliers: &Outliers| outliers.is_ejected(&worker.key.worker, self.now);
        Some(Candidate {
            key: &worker.key,
            profile: &worker.profile,
            adapters: &worker.adapters,
            load,
            shared_blocks,
            overlap,
            trust: self.held.blocks_of(number).map_or(Trust::Full, |held| held.trust),
            fetch: self.fetch(number).ok().map(|fetch| fetch.cost()),
            age: member.joined.map_or(Duration::MAX, |at| self.now.saturating_sub(at)),
            is_ejected: self.outliers.is_some_and(is_ejected),
        })
    }

    fn are_settled(&self) -> bool {
        self.are_settled
    }

    // Called for each rank of a decision. It reads only `ranks`, never a member: the members of a large fleet do not
    // fit into the nearest cache.
    #[inline(always)]
    fn vitals(&self, number: usize) -> Option<Vitals> {
        let (rank, capacity_blocks) = *self.ranks.get(number)?;
        Some(Vitals {
            capacity_blocks,
            load: self.active.load_at(rank, self.now),
            shared_blocks: self.shared.of(rank),
            overlap: self
                .held
                .blocks_of(number)
                .map_or_else(TierBlocks::default, |held| held.blocks),
        })
    }
}

#[cfg(test)]
#[path = "candidates_test.rs"]
mod candidates_test;
