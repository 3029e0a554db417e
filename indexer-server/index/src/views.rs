//! Views of workers, their ranks and their sources, for readers.

use crate::contradicted::{Contradiction, Meaning};
use crate::holder::Holder;
use crate::index::Index;
use crate::source::{HolderId, Source, SourceId, Worker};
use kvasir_proto::types::{DpRank, Reason, SourceStatus, StateReason, WorkerId};
use std::sync::Arc;
use std::time::Duration;

impl Index {
    /// One rank.
    #[must_use]
    pub fn holder(&self, holder: HolderId) -> Option<HolderView<'_>> {
        let holder = self.holder_at(holder.0)?;
        Some(HolderView { index: self, holder })
    }

    /// All workers, by id.
    pub fn workers(&self) -> impl Iterator<Item = WorkerView<'_>> {
        self.workers.iter().map(|(id, worker)| WorkerView { index: self, id, worker })
    }

    /// Why a source is worse than exact, for images and dumps: as reported, and the contradictions of its ranks. Nothing else
    /// shows whoever continues with them that what a name means is doubtful.
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

    /// Whether a rank here reads a pool, which may be in another index.
    #[must_use]
    pub fn has_readers(&self, pool: &WorkerId) -> bool {
        self.roles.readers(pool).is_some()
    }

    /// Positions that pools hold: pairs of a rank of a pool and a position.
    #[must_use]
    pub fn pool_pairs(&self) -> u64 {
        let pools = self.roles.pools().filter_map(|id| self.worker(id));
        pools.flat_map(|pool| pool.holders()).map(|holder| holder.placed_blocks()).sum()
    }

    /// One worker.
    #[must_use]
    pub fn worker(&self, id: &WorkerId) -> Option<WorkerView<'_>> {
        let (id, worker) = self.workers.get_key_value(id)?;
        Some(WorkerView { index: self, id, worker })
    }
}

fn own_reason(reason: Reason, count: u64, example: &str) -> StateReason {
    StateReason { reason, count, example: example.into(), since: Duration::ZERO }
}

/// One worker.
#[derive(Debug, Clone, Copy)]
pub struct WorkerView<'a> {
    index: &'a Index,
    id: &'a WorkerId,
    worker: &'a Worker,
}

impl<'a> WorkerView<'a> {
    /// Its name.
    #[must_use]
    pub const fn id(&self) -> &'a WorkerId {
        self.id
    }

    /// Whether the next image would record anything new: changed blocks, or the state of a source.
    /// Times of verification, connections and held-back batches do not count.
    #[must_use]
    pub fn has_changed(&self) -> bool {
        let index = self.index;
        let mut holders = self.worker.ranks.iter().filter_map(|&(_, at)| index.holder_at(at));
        let mut sources = self.worker.sources.iter().filter_map(|id| index.sources.get(id));
        self.worker.has_news
            || holders.any(|holder| holder.changes().has_changes())
            || sources.any(Source::has_changed)
    }

    /// Its ranks, in order.
    pub fn holders(&self) -> impl Iterator<Item = HolderView<'a>> + use<'a> {
        let index = self.index;
        let holders = self.worker.ranks.iter().filter_map(|&(_, at)| index.holder_at(at));
        holders.map(move |holder| HolderView { index, holder })
    }

    /// Why a source of it is worse than exact, beyond what its status shows.
    #[must_use]
    pub fn own_reasons(&self, source: SourceId) -> Vec<StateReason> {
        let Some(at) = self.index.sources.get(&source) else { return Vec::new() };
        let own = at.own_reasons().map(|reason| own_reason(reason, 1, ""));
        let holders = self.holders().filter(|holder| at.feeds(holder.holder.index()));
        own.chain(holders.flat_map(|holder| holder.block_reasons())).collect()
    }

    /// Its sources, in order of arrival.
    pub fn sources(&self) -> impl Iterator<Item = (SourceId, &'a str, &'a SourceStatus)> + use<'a> {
        let index = self.index;
        self.worker.sources.iter().filter_map(move |&id| {
            index.sources.get(&id).map(|source| (id, &**source.name(), source.status()))
        })
    }
}

/// One rank.
#[derive(Debug, Clone, Copy)]
pub struct HolderView<'a> {
    index: &'a Index,
    holder: &'a Holder,
}

impl<'a> HolderView<'a> {
    /// Its worker.
    #[must_use]
    pub const fn worker(&self) -> &'a WorkerId {
        self.holder.worker()
    }

    /// Its rank.
    #[must_use]
    pub const fn rank(&self) -> DpRank {
        self.holder.rank()
    }

    /// Positions it holds.
    #[must_use]
    pub const fn placed_blocks(&self) -> u64 {
        self.holder.placed()
    }

    /// Names it holds that are not placed.
    #[must_use]
    pub const fn parked_blocks(&self) -> u64 {
        self.holder.parked() as u64
    }

    /// Blocks that it lacks for the byte budget: shed, or refused since
    /// because their parents were. 0 again once all of its sources have been cleared.
    #[must_use]
    pub const fn shed_blocks(&self) -> u64 {
        self.holder.shed_blocks()
    }

    /// The first store that contradicts what a name of the rank means, and how many there were, while such a name is
    /// held.
    #[must_use]
    pub fn contradiction(&self) -> Option<(Contradiction, u64)> {
        let is_any = self.holder.is_contradicted(&self.index.trie);
        self.holder.first_contradiction().filter(|_| is_any)
    }

    /// The same as a reason.
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

    /// Why the state of the rank is worse than exact: reasons of all its sources.
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

    /// Reasons that the blocks of the rank show, whatever its sources report.
    fn block_reasons(&self) -> impl Iterator<Item = StateReason> + use<> {
        let parked = self.parked_blocks();
        // No prompt matches them.
        let unknown = || own_reason(Reason::UnknownContent, parked, "");
        self.contradiction_reason().into_iter().chain((parked > 0).then(unknown))
    }

    /// Whether its blocks show that it is not exact, whatever its sources report.
    #[must_use]
    pub fn is_partial(&self) -> bool {
        self.parked_blocks() > 0 || self.holder.is_contradicted(&self.index.trie)
    }

    /// Whether the rank may hold less than the index shows, for a reason that was noted.
    #[must_use]
    pub fn may_be_high(&self) -> bool {
        self.sources().any(|(_, _, status)| status.may_be_high())
            || self.holder.is_contradicted(&self.index.trie)
    }

    /// Sources that feed this rank, in order of arrival.
    pub fn sources(&self) -> impl Iterator<Item = (SourceId, &'a str, &'a SourceStatus)> + use<'a> {
        let sources = &self.index.sources;
        self.holder.fed_by().iter().filter_map(|&id| {
            sources.get(&id).map(|source| (id, &**source.name(), source.status()))
        })
    }

    /// Status of the rank: that of the least trustworthy source that feeds it (of equals, the one behind
    /// most), but connected only if all of them are. Cold if none feeds it.
    #[must_use]
    pub fn status(&self) -> SourceStatus {
        let (worst, connected) = self.worst_source();
        worst
            .map_or_else(SourceStatus::default, |worst| SourceStatus { connected, ..worst.clone() })
    }

    /// What [`status`](Self::status) consists of, without a copy: the status of that source, and whether all are connected. None, and
    /// false, if none feeds the rank.
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
