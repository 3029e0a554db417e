//! Workers, their ranks and their sources.

use crate::error::IndexError;
use crate::holder::Holder;
use crate::index::Index;
use crate::record::Announcement;
use crate::sets::HolderIndex;
use crate::sweep::SweepCursor;
use crate::table::index_u32;
use kvasir_proto::digest::RankDigest;
use kvasir_proto::types::{CopyMode, Cursor, DpRank, Incarnation, SourceState, Tier, WorkerId};
use smallvec::SmallVec;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// One event stream of a worker, within one index. Never used twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SourceId(pub u32);

impl fmt::Display for SourceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// One rank of a worker, within one index and while the worker is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HolderId(pub(crate) HolderIndex);

/// Where a source stands. Kept beside the blocks, so that an answer's freshness and its blocks are
/// of one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceStatus {
    /// How far it can be trusted.
    pub state: SourceState,
    /// Last applied batch.
    pub applied: Option<Cursor>,
    /// Highest sequence number announced in this life.
    pub last_live: Option<u64>,
    /// Batches held back while a replay is on its way.
    pub buffered_batches: u64,
    /// Whether its transport is connected.
    pub connected: bool,
    /// When it was last seen to have nothing newer, since the owner's origin of time.
    pub verified_at: Option<Duration>,
    /// Lives of it that are over, the latest last, for whoever follows it after a restart.
    pub past: Arc<[Incarnation]>,
    /// The engine's main KV-cache group, for whoever follows it after a restart; none as long as it has stated
    /// none.
    pub main_group: Option<u32>,
}

impl Default for SourceStatus {
    fn default() -> Self {
        Self {
            state: SourceState::Cold,
            applied: None,
            last_live: None,
            buffered_batches: 0,
            connected: false,
            verified_at: None,
            past: Arc::default(),
            main_group: None,
        }
    }
}

impl SourceStatus {
    /// Batches announced and not applied.
    #[must_use]
    pub fn lag_batches(&self) -> u64 {
        let Some(announced) = self.last_live else {
            return 0;
        };
        match &self.applied {
            Some(applied) => announced.saturating_sub(applied.sequence),
            None => announced.saturating_add(1),
        }
    }
}

#[derive(Debug)]
pub(crate) struct Source {
    pub(crate) worker: WorkerId,
    pub(crate) name: Arc<str>,
    pub(crate) mode: CopyMode,
    /// Counts losses: copies announced before the latest are doubtful.
    pub(crate) epoch: u32,
    /// Ranks that it feeds.
    pub(crate) ranks: SmallVec<[(DpRank, HolderIndex); 1]>,
    /// Number of (name, tier) of which it holds copies.
    pub(crate) keys: u64,
    /// As reported, but for the state, which is the worst of those below.
    pub(crate) status: SourceStatus,
    /// As reported.
    reported: SourceState,
    /// Whether a change is under way that takes several holds.
    changing: bool,
    /// Whether blocks that it stored were refused.
    incomplete: bool,
    /// Its ranks in which it may lack blocks that were shed.
    short_ranks: usize,
    pub(crate) sweep: Option<SweepCursor>,
    /// The loss epoch up to which nothing that it holds is doubtful.
    certain_epoch: u32,
    /// What the last image said of it.
    pub(crate) imaged: Option<Standing>,
}

/// What an image says of a source, but for what never changes and what is true for a moment only.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Standing {
    pub(crate) state: SourceState,
    applied: Option<Cursor>,
    last_live: Option<u64>,
    ranks: usize,
    pub(crate) incomplete: bool,
    /// Whether some of what it holds is doubtful.
    pub(crate) doubtful: bool,
}

impl Source {
    /// Blocks that it stored are not held: until it is cleared it is partial at best.
    pub(crate) fn lacks_blocks(&mut self) {
        self.incomplete = true;
        self.show();
    }

    /// Whether blocks that it stored are not held: refused, or shed.
    pub(crate) const fn is_incomplete(&self) -> bool {
        self.incomplete || self.short_ranks > 0
    }

    pub(crate) fn standing(&self) -> Standing {
        Standing {
            state: self.reported,
            applied: self.status.applied,
            last_live: self.status.last_live,
            ranks: self.ranks.len(),
            incomplete: self.incomplete,
            doubtful: self.epoch > self.certain_epoch,
        }
    }

    /// Shows its state as it was reported, or worse.
    fn show(&mut self) {
        let changing = if self.changing { SourceState::CatchingUp } else { SourceState::Exact };
        let partial = if self.is_incomplete() { SourceState::Partial } else { SourceState::Exact };
        self.status.state = self.reported.max(changing).max(partial);
    }
}

#[derive(Debug, Default)]
pub(crate) struct Worker {
    /// By rank.
    pub(crate) ranks: Vec<(DpRank, HolderIndex)>,
    /// In order of arrival.
    pub(crate) sources: Vec<SourceId>,
    /// Whether the next image has news that ranks and sources do not show: one of these went, or the
    /// last image was given up.
    pub(crate) untold: bool,
}

impl Index {
    /// Adds a source to a worker, which is created with it, and lets it feed `rank`.
    ///
    /// # Errors
    /// If the worker has a source of that name, or too many sources or ranks.
    pub fn add_source(
        &mut self,
        worker: &WorkerId,
        name: &str,
        rank: DpRank,
        copy_mode: CopyMode,
    ) -> Result<SourceId, IndexError> {
        let at = self.workers.entry(worker.clone()).or_default();
        let named = |id: &SourceId| self.sources.get(id).is_some_and(|at| &*at.name == name);
        if at.sources.iter().any(named) {
            let name = name.to_owned();
            return Err(IndexError::DuplicateSource { worker: worker.clone(), name });
        }
        let limit = self.limits.sources_max;
        if at.sources.len() >= limit {
            return Err(IndexError::TooMany { worker: worker.clone(), what: "sources", limit });
        }
        let id = SourceId(self.next_source);
        self.next_source += 1;
        at.sources.push(id);
        self.sources.insert(
            id,
            Source {
                worker: worker.clone(),
                name: name.into(),
                mode: copy_mode,
                epoch: 0,
                ranks: SmallVec::new(),
                keys: 0,
                status: SourceStatus::default(),
                reported: SourceState::Cold,
                changing: false,
                incomplete: false,
                short_ranks: 0,
                sweep: None,
                certain_epoch: 0,
                imaged: None,
            },
        );
        if let Err(error) = self.rank_of(id, rank) {
            self.forget(id);
            return Err(error);
        }
        Ok(id)
    }

    /// Forgets a source that holds nothing any more; with its last source a worker goes.
    ///
    /// # Errors
    /// If the source is not known, or not cleared.
    pub fn remove_source(&mut self, source: SourceId) -> Result<(), IndexError> {
        let copies = self.source(source)?.keys;
        if copies > 0 {
            return Err(IndexError::NotCleared { source_id: source, copies });
        }
        self.forget(source);
        Ok(())
    }

    fn forget(&mut self, id: SourceId) {
        let Some(source) = self.sources.remove(&id) else {
            return;
        };
        for &(_, holder) in &source.ranks {
            if let Some(Some(holder)) = self.holders.get_mut(holder as usize) {
                if holder.primary == Some(id) {
                    holder.primary = None;
                }
                holder.is_whole_for(id);
                holder.digests.retain(|(kept, _)| *kept != id);
            }
            self.recount(holder);
        }
        let Some(worker) = self.workers.get_mut(&source.worker) else {
            return;
        };
        worker.sources.retain(|&other| other != id);
        worker.untold = true;
        if worker.sources.is_empty() {
            for (_, holder) in std::mem::take(&mut worker.ranks) {
                if let Some(slot) = self.holders.get_mut(holder as usize) {
                    let (bytes, parked) = slot.take().map_or((0, 0), |holder| holder.counted);
                    self.holder_bytes -= bytes;
                    self.parked -= parked;
                }
                self.free_holders.push(holder);
            }
            self.workers.remove(&source.worker);
            if self.workers.is_empty() {
                self.holders = Vec::new();
                self.free_holders = Vec::new();
            }
            self.renumber();
        }
    }

    pub(crate) fn source(&self, id: SourceId) -> Result<&Source, IndexError> {
        self.sources.get(&id).ok_or(IndexError::UnknownSource { source_id: id })
    }

    pub(crate) fn announcement(
        &self,
        id: SourceId,
        tier: Tier,
    ) -> Result<Announcement, IndexError> {
        let source = self.source(id)?;
        Ok(Announcement { source: id, tier, mode: source.mode, epoch: source.epoch })
    }

    /// The holder of a source's rank; made if it is new.
    pub(crate) fn rank_of(
        &mut self,
        id: SourceId,
        rank: DpRank,
    ) -> Result<HolderIndex, IndexError> {
        let source = self.source(id)?;
        if let Some(&(_, holder)) = source.ranks.iter().find(|(at, _)| *at == rank) {
            return Ok(holder);
        }
        let worker = source.worker.clone();
        let made = self.make_rank(&worker, rank);
        match &made {
            Ok(holder) => self.feed_rank(id, rank, *holder),
            Err(_) => self.mark_incomplete(id),
        }
        made
    }

    fn feed_rank(&mut self, id: SourceId, rank: DpRank, holder: HolderIndex) {
        let has_digests = self.has_digests(id);
        self.change_source(id, |source| source.ranks.push((rank, holder)));
        if let Some(Some(at)) = self.holders.get_mut(holder as usize)
            && has_digests
        {
            at.digests.push((id, RankDigest::default()));
        }
    }

    /// A rank of a worker; made if it is new.
    pub(crate) fn make_rank(
        &mut self,
        name: &WorkerId,
        rank: DpRank,
    ) -> Result<HolderIndex, IndexError> {
        let worker = self.workers.entry(name.clone()).or_default();
        let at = match worker.ranks.binary_search_by_key(&rank, |&(at, _)| at) {
            Ok(at) => return Ok(worker.ranks.get(at).map_or(0, |&(_, holder)| holder)),
            Err(at) => at,
        };
        let limit = self.limits.ranks_max;
        if worker.ranks.len() >= limit {
            let worker = name.clone();
            return Err(IndexError::TooMany { worker, what: "ranks", limit });
        }
        for &(_, other) in &worker.ranks {
            if let Some(Some(other)) = self.holders.get_mut(other as usize) {
                other.abort_dumps("a rank was added");
            }
        }
        let index = self.free_holders.pop().unwrap_or(index_u32(self.holders.len()));
        worker.ranks.insert(at, (rank, index));
        let holder = Some(Box::new(Holder::new(name.clone(), rank, index)));
        match self.holders.get_mut(index as usize) {
            Some(slot) => *slot = holder,
            None => self.holders.push(holder),
        }
        self.renumber();
        self.recount(index);
        Ok(index)
    }

    /// Numbers the ranks in the order in which answers list equals.
    fn renumber(&mut self) {
        self.order.clear();
        self.order.resize(self.holders.len(), u32::MAX);
        self.present.clear();
        self.present.resize(self.holders.len().div_ceil(64), 0);
        self.in_order = true;
        self.ordered.clear();
        let ordered = self.workers.values().flat_map(|worker| &worker.ranks);
        let mut before = None;
        for (order, &(_, holder)) in ordered.enumerate() {
            if let Some(at) = self.order.get_mut(holder as usize) {
                *at = index_u32(order);
            }
            if let Some(word) = self.present.get_mut(holder as usize / 64) {
                *word |= 1 << (holder % 64);
            }
            self.in_order &= before < Some(holder);
            self.ordered.push(holder);
            before = Some(holder);
        }
    }

    pub(crate) fn holder_at(&self, holder: HolderIndex) -> Option<&Holder> {
        self.holders.get(holder as usize)?.as_deref()
    }

    /// Says where a source stands; unknown sources are passed over. Its state is shown as it is
    /// said, or worse: while a change is under way, or once blocks were refused.
    pub fn set_status(&mut self, source: SourceId, status: SourceStatus) {
        self.change_source(source, |source| {
            source.reported = status.state;
            source.status = status;
        });
    }

    /// A change that takes several calls begins or goes on: until [`Index::end_change`] the source
    /// is not exact.
    pub fn begin_change(&mut self, source: SourceId) {
        self.change_source(source, |source| source.changing = true);
    }

    /// The change is complete.
    pub fn end_change(&mut self, source: SourceId) {
        self.change_source(source, |source| source.changing = false);
    }

    /// Blocks that the source stored are not held: until it is cleared it is partial at best.
    pub fn mark_incomplete(&mut self, source: SourceId) {
        self.change_source(source, Source::lacks_blocks);
    }

    /// If nothing of it is held, nothing is missing either.
    pub(crate) fn complete_if_empty(&mut self, source: SourceId) {
        self.change_source(source, |source| source.incomplete &= source.keys > 0);
    }

    /// Nothing that the source holds is doubtful any more.
    pub(crate) fn settle_doubts(&mut self, source: SourceId) {
        self.change_source(source, |source| source.certain_epoch = source.epoch);
    }

    /// Blocks of a rank were shed, or not taken because of that: until they are cleared the sources
    /// that feed it are partial at best.
    pub(crate) fn mark_short(&mut self, holder: HolderIndex, blocks: u64) {
        self.mark_short_of(holder, blocks, |_| true);
    }

    /// The same of those of its sources that are asked for; nothing, if these are none.
    pub(crate) fn mark_short_of(
        &mut self,
        holder: HolderIndex,
        blocks: u64,
        is_asked: impl Fn(&SourceId) -> bool,
    ) {
        let Some(Some(at)) = self.holders.get_mut(holder as usize) else {
            return;
        };
        let worker = self.workers.get(&at.worker);
        let feeds = |id: &SourceId| {
            let source = self.sources.get(id);
            source.is_some_and(|source| source.ranks.iter().any(|&(_, at)| at == holder))
        };
        let sources = worker.into_iter().flat_map(|worker| &worker.sources).copied();
        let lacking = sources.filter(|id| blocks > 0 && is_asked(id) && feeds(id));
        let (known, new): (Vec<_>, Vec<_>) = lacking.partition(|id| at.short.contains(id));
        if known.is_empty() && new.is_empty() {
            return;
        }
        at.shed_blocks += blocks;
        at.change_heading();
        at.short.extend(new.iter().copied());
        for id in new {
            self.change_source(id, |source| source.short_ranks += 1);
        }
    }

    /// Counts again in which ranks a source may lack blocks, after it was cleared.
    pub(crate) fn recount_short_ranks(&mut self, id: SourceId) {
        let Some(source) = self.sources.get(&id) else {
            return;
        };
        let ranks = source.ranks.iter().filter_map(|&(_, holder)| self.holder_at(holder));
        let short_ranks = ranks.filter(|holder| holder.short.contains(&id)).count();
        self.change_source(id, |source| source.short_ranks = short_ranks);
    }

    /// Keeps the totals in step with a rank.
    pub(crate) fn recount(&mut self, holder: HolderIndex) {
        if let Some(Some(holder)) = self.holders.get_mut(holder as usize) {
            let (bytes, parked) = holder.counted;
            holder.counted = (holder.bytes(), holder.parked);
            self.holder_bytes = self.holder_bytes - bytes + holder.counted.0;
            self.parked = self.parked - parked + holder.counted.1;
        }
    }

    fn change_source(&mut self, source: SourceId, change: impl FnOnce(&mut Source)) {
        if let Some(source) = self.sources.get_mut(&source) {
            change(source);
            source.show();
        }
    }

    /// Where a source stands.
    #[must_use]
    pub fn status(&self, source: SourceId) -> Option<&SourceStatus> {
        self.sources.get(&source).map(|source| &source.status)
    }
}
