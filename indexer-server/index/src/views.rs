//! Read-only views of workers, their ranks and their sources.

use crate::contradicted::{Contradiction, Meaning};
use crate::holder::Holder;
use crate::index::Index;
use crate::reuse::ReuseHistory;
use crate::source::{HolderId, Source, SourceId, Worker};
use kvasir_proto::types::{DpRank, Reason, SourceState, SourceStatus, StateReason, WorkerId};
use std::sync::Arc;
use std::time::Duration;

impl Index {
    /// View of one rank.
    #[must_use]
    pub fn holder(&self, holder: HolderId) -> Option<HolderView<'_>> {
        let holder = self.holder_at(holder.0)?;
        Some(HolderView { index: self, holder })
    }

    /// Views of all workers, by id.
    pub fn workers(&self) -> impl Iterator<Item = WorkerView<'_>> {
        self.workers.iter().map(|(id, worker)| WorkerView { index: self, id, worker })
    }

    /// Why a source is worse than exact, for images and dumps: the reported reasons, and the contradictions
    /// of its ranks. A reader that continues from them has no other sign that the meaning of a name is
    /// doubtful.
    pub(crate) fn lasting_reasons(&self, id: SourceId) -> Arc<[StateReason]> {
        let Some(source) = self.sources.get(&id) else { return Arc::default() };
        let holders = self.worker(source.worker()).into_iter().flat_map(|worker| worker.holders());
        let fed = holders.filter(|holder| source.feeds(holder.holder.index()));
        let mut reasons = source.status().reasons.to_vec();
        for seen in fed.filter_map(|holder| holder.contradiction_reason()) {
            StateReason::note(&mut reasons, seen);
        }
        reasons.into()
    }

    /// Whether a worker is a pool.
    #[must_use]
    pub fn is_pool(&self, worker: &WorkerId) -> bool {
        self.roles.is_pool(worker)
    }

    /// Whether a rank of this index reads a pool. The pool may be in another index.
    #[must_use]
    pub fn has_readers(&self, pool: &WorkerId) -> bool {
        self.roles.readers(pool).is_some()
    }

    /// Number of positions in pools: pairs of a pool's rank and a position.
    #[must_use]
    pub fn pool_pairs(&self) -> u64 {
        let pools = self.roles.pools().filter_map(|id| self.worker(id));
        pools.flat_map(|pool| pool.holders()).map(|holder| holder.placed_blocks()).sum()
    }

    /// View of one worker.
    #[must_use]
    pub fn worker(&self, id: &WorkerId) -> Option<WorkerView<'_>> {
        let (id, worker) = self.workers.get_key_value(id)?;
        Some(WorkerView { index: self, id, worker })
    }
}

fn own_reason(reason: Reason, count: u64, example: &str) -> StateReason {
    StateReason { reason, count, example: example.into(), since: Duration::ZERO }
}

/// View of one worker.
#[derive(Debug, Clone, Copy)]
pub struct WorkerView<'a> {
    index: &'a Index,
    id: &'a WorkerId,
    worker: &'a Worker,
}

impl<'a> WorkerView<'a> {
    /// Id of the worker.
    #[must_use]
    pub const fn id(&self) -> &'a WorkerId {
        self.id
    }

    /// Whether the next image would differ: changed blocks, or the state of a source. Changes of verification
    /// times, connections and buffered batches do not count.
    #[must_use]
    pub fn has_changed(&self) -> bool {
        let index = self.index;
        let mut holders = self.worker.ranks.iter().filter_map(|&(_, at)| index.holder_at(at));
        let mut sources = self.worker.sources.iter().filter_map(|id| index.sources.get(id));
        self.worker.has_news
            || holders.any(|holder| holder.changes().has_changes())
            || sources.any(Source::has_changed)
    }

    /// The worker's ranks, in order.
    pub fn holders(&self) -> impl Iterator<Item = HolderView<'a>> + use<'a> {
        let index = self.index;
        let holders = self.worker.ranks.iter().filter_map(|&(_, at)| index.holder_at(at));
        holders.map(move |holder| HolderView { index, holder })
    }

    /// Why a source of the worker is worse than exact, in addition to its status.
    #[must_use]
    pub fn own_reasons(&self, source: SourceId) -> Vec<StateReason> {
        let Some(at) = self.index.sources.get(&source) else { return Vec::new() };
        let own = at.own_reasons().map(|reason| own_reason(reason, 1, ""));
        let holders = self.holders().filter(|holder| at.feeds(holder.holder.index()));
        own.chain(holders.flat_map(|holder| holder.block_reasons())).collect()
    }

    /// The worker's sources, in order of arrival.
    pub fn sources(&self) -> impl Iterator<Item = (SourceId, &'a str, &'a SourceStatus)> + use<'a> {
        let index = self.index;
        self.worker.sources.iter().filter_map(move |&id| {
            index.sources.get(&id).map(|source| (id, &**source.name(), source.status()))
        })
    }
}

/// View of one rank.
#[derive(Debug, Clone, Copy)]
pub struct HolderView<'a> {
    index: &'a Index,
    holder: &'a Holder,
}

impl<'a> HolderView<'a> {
    /// Worker of the rank.
    #[must_use]
    pub const fn worker(&self) -> &'a WorkerId {
        self.holder.worker()
    }

    /// Number of the rank within its worker.
    #[must_use]
    pub const fn rank(&self) -> DpRank {
        self.holder.rank()
    }

    /// Number of positions that the rank holds.
    #[must_use]
    pub const fn placed_blocks(&self) -> u64 {
        self.holder.placed()
    }

    /// Number of the rank's names that are not placed.
    #[must_use]
    pub const fn parked_blocks(&self) -> u64 {
        self.holder.parked() as u64
    }

    /// Blocks that the rank lacks because of the byte budget: evicted, or rejected since because their
    /// parents were. 0 again once all its sources were cleared.
    #[must_use]
    pub const fn shed_blocks(&self) -> u64 {
        self.holder.shed_blocks()
    }

    /// The first store that contradicts the meaning of a name of the rank, and the number of such stores.
    /// `None` once no such name is held any more.
    #[must_use]
    pub fn contradiction(&self) -> Option<(Contradiction, u64)> {
        let is_any = self.holder.is_contradicted(&self.index.trie);
        self.holder.first_contradiction().filter(|_| is_any)
    }

    /// The contradiction as a reason.
    pub(crate) fn contradiction_reason(&self) -> Option<StateReason> {
        let (Contradiction { name, held, announced }, count) = self.contradiction()?;
        let text = |meaning: Meaning| {
            let local = meaning.local.map_or_else(|| "?".to_owned(), |local| local.to_string());
            let parent = meaning.parent.map_or_else(|| "root".to_owned(), |name| name.to_string());
            format!("{local} after {parent}")
        };
        let example = format!("name={name} held={} announced={}", text(held), text(announced));
        Some(own_reason(Reason::Contradiction, count, &example))
    }

    /// Why the rank's state is worse than exact: reasons of all its sources.
    #[must_use]
    pub fn reasons(&self) -> Vec<StateReason> {
        let mut reasons = Vec::new();
        let sources = self.holder.fed_by().iter().filter_map(|id| self.index.sources.get(id));
        for source in sources {
            let own = source.own_reasons().map(|reason| own_reason(reason, 1, ""));
            for seen in source.status().all_reasons().into_iter().chain(own) {
                StateReason::note(&mut reasons, seen);
            }
        }
        for seen in self.block_reasons() {
            StateReason::note(&mut reasons, seen);
        }
        reasons
    }

    /// Reasons derived from the rank's blocks, independent of the reports of its sources.
    fn block_reasons(&self) -> impl Iterator<Item = StateReason> + use<> {
        let parked = self.parked_blocks();
        // Prompts never match parked blocks.
        let unknown = || own_reason(Reason::UnknownContent, parked, "");
        let hidden = || own_reason(Reason::UnannouncedGroups, 1, "engine_facts.unannounced_groups");
        let reasons = self.contradiction_reason().into_iter().chain((parked > 0).then(unknown));
        let differing = self.holder.reuse_history().into_iter().flat_map(ReuseHistory::reasons);
        let differing = differing.map(|(at, count, last)| own_reason(at, count, &last.to_string()));
        // Collected, because a view must not outlive the index.
        let differing = differing.collect::<Vec<_>>();
        reasons.chain(self.hides_groups().then(hidden)).chain(differing)
    }

    /// Whether the rank's blocks show that it is not exact, independent of the reports of its sources.
    #[must_use]
    pub fn is_partial(&self) -> bool {
        self.lacks_blocks() || self.holder.reuse_history().is_some_and(ReuseHistory::differs)
    }

    /// Whether the known blocks of the rank are not all blocks that its engine reuses.
    fn lacks_blocks(&self) -> bool {
        self.parked_blocks() > 0
            || self.hides_groups()
            || self.holder.is_contradicted(&self.index.trie)
    }

    /// Whether answers predict the reuse of a prompt: the rank is exact, apart from reports of engines.
    pub(crate) fn is_predictable(&self) -> bool {
        let (worst, connected) = self.worst_source();
        let is_exact = worst.is_some_and(|status| status.state == SourceState::Exact);
        is_exact && connected && self.shed_blocks() == 0 && !self.lacks_blocks()
    }

    /// Whether the engine has groups that it does not announce.
    fn hides_groups(&self) -> bool {
        self.index.roles.facts_of(self.holder.index()).unannounced_groups
    }

    /// Whether the rank may have fewer blocks than the index shows, for a recorded reason.
    #[must_use]
    pub fn may_be_high(&self) -> bool {
        self.sources().any(|(_, _, status)| status.may_be_high())
            || self.hides_groups()
            || self.holder.reuse_history().is_some_and(ReuseHistory::is_high)
            || self.holder.is_contradicted(&self.index.trie)
    }

    /// Sources that feed this rank, in order of arrival.
    pub fn sources(&self) -> impl Iterator<Item = (SourceId, &'a str, &'a SourceStatus)> + use<'a> {
        let sources = &self.index.sources;
        self.holder.fed_by().iter().filter_map(|&id| {
            sources.get(&id).map(|source| (id, &**source.name(), source.status()))
        })
    }

    /// Status of the rank: that of its least trustworthy source; among equals, the one with the largest lag.
    /// Connected only if all its sources are. Cold without a source.
    #[must_use]
    pub fn status(&self) -> SourceStatus {
        let (worst, connected) = self.worst_source();
        worst
            .map_or_else(SourceStatus::default, |worst| SourceStatus { connected, ..worst.clone() })
    }

    /// The parts of [`status`](Self::status), without a copy: the status of the least trustworthy source, and
    /// whether all sources are connected. `None` and `false` without a source.
    #[must_use]
    pub fn worst_source(&self) -> (Option<&'a SourceStatus>, bool) {
        let mut worst = None::<&SourceStatus>;
        let mut connected = true;
        for (_, _, status) in self.sources() {
            connected &= status.connected;
            let rank = |at: &SourceStatus| (at.state, at.lag_batches());
            if worst.is_none_or(|worst| rank(status) >= rank(worst)) {
                worst = Some(status);
            }
        }
        (worst, connected && worst.is_some())
    }
}
