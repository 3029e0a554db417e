//! Registry of workers, ranks and sources: adding, removing and updating them.

use crate::error::IndexError;
use crate::holder::Holder;
use crate::index::Index;
use crate::listing::Listing;
use crate::rank::RankChange;
use crate::record::Announcement;
use crate::sets::HolderIndex;
use crate::source::{Source, SourceId, Worker};
use crate::table::index_u32;
use crate::totals::Totals;
use kvasir_proto::digest::RankDigest;
use kvasir_proto::types::{
    BlockName, CopyMode, DpRank, EngineFacts, NameChange, NameMeaning, SourceStatus, Tier, WorkerId,
};
use std::collections::BTreeMap;

/// Bytes of a rank without blocks.
const RANK_BYTES: usize = size_of::<Holder>() + size_of::<Option<Box<Holder>>>();

/// Sets whether ranks are candidates of queries.
fn set_present(present: &mut [u64], ranks: impl IntoIterator<Item = HolderIndex>, is: bool) {
    for rank in ranks {
        let Some(word) = present.get_mut(rank as usize / 64) else { continue };
        let bit = 1 << (rank % 64);
        *word = if is { *word | bit } else { *word & !bit };
    }
}

/// The ranks of a worker; empty before its first source.
fn ranks<'a>(
    workers: &'a BTreeMap<WorkerId, Worker>,
    worker: &WorkerId,
) -> &'a [(DpRank, HolderIndex)] {
    workers.get(worker).map_or(&[], |worker| &worker.ranks)
}

impl Index {
    /// Adds a source that feeds `rank` of a worker. Creates the worker if necessary.
    ///
    /// # Errors
    /// If the worker has a source of that name, or too many sources or ranks, or if the byte budget is used
    /// up.
    pub fn add_source(
        &mut self,
        worker: &WorkerId,
        name: &str,
        rank: DpRank,
        copy_mode: CopyMode,
    ) -> Result<SourceId, IndexError> {
        let bytes = size_of::<Worker>() + size_of::<Source>() + RANK_BYTES;
        if self.room_bytes.is_some_and(|room| room < bytes) {
            return Err(IndexError::NoRoom { worker: worker.clone() });
        }
        let at = self.workers.entry(worker.clone()).or_default();
        let named = |id: &SourceId| self.sources.get(id).is_some_and(|at| &**at.name() == name);
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
        self.room_bytes = self.room_bytes.map(|room| room - (bytes - RANK_BYTES));
        at.sources.push(id);
        self.sources.insert(id, Source::new(worker.clone(), name, copy_mode));
        if let Err(error) = self.rank_of(id, rank) {
            self.forget(id);
            return Err(error);
        }
        Ok(id)
    }

    /// Removes a source without blocks, and the worker after its last source.
    ///
    /// # Errors
    /// If the source is unknown or still has blocks.
    pub fn remove_source(&mut self, source: SourceId) -> Result<(), IndexError> {
        let copies = self.source(source)?.keys();
        if copies > 0 {
            return Err(IndexError::NotCleared { source_id: source, copies });
        }
        self.forget(source);
        Ok(())
    }

    /// Removes a source, and its worker with the last source. Frees the tables after the last worker.
    fn forget(&mut self, id: SourceId) {
        let Some(source) = self.sources.remove(&id) else {
            return;
        };
        for &(_, holder) in source.ranks() {
            if let Some(Some(holder)) = self.holders.get_mut(holder as usize) {
                holder.forget_source(id);
            }
            self.recount(holder);
        }
        let Some(worker) = self.workers.get_mut(source.worker()) else {
            return;
        };
        worker.sources.retain(|&other| other != id);
        worker.has_news = true;
        if worker.sources.is_empty() {
            let ranks: Vec<_> = worker.ranks.drain(..).map(|(_, holder)| holder).collect();
            self.remove_ranks(source.worker(), &ranks);
            self.workers.remove(source.worker());
            if self.workers.is_empty() {
                self.holders = Vec::new();
                self.free_holders = Vec::new();
                self.present = Vec::new();
                self.listing = Listing::default();
            }
        }
    }

    /// Frees ranks of a worker, which have no blocks and are consecutive in the listing.
    fn remove_ranks(&mut self, worker: &WorkerId, ranks: &[HolderIndex]) {
        self.listing.remove(ranks);
        for &holder in ranks {
            if let Some(slot) = self.holders.get_mut(holder as usize) {
                let counted = slot.take().map_or(Totals::default(), |holder| holder.counted());
                self.totals.replace(counted, Totals::default());
            }
            self.roles.remove_rank(worker, holder);
            self.free_holders.push(holder);
        }
        set_present(&mut self.present, ranks.iter().copied(), false);
    }

    /// Marks the rank with which a source was added as presumed: it stays only until the source states other
    /// ranks. No effect if the source does not feed the rank, or if the rank has blocks.
    pub fn presume_rank(&mut self, source: SourceId, rank: DpRank) {
        let holder = self.sources.get(&source).and_then(|source| source.holder_of(rank));
        let holder = holder.and_then(|holder| self.holder_at(holder));
        if holder.is_some_and(|holder| holder.placed() == 0 && holder.parked() == 0) {
            self.change_source(source, |source| source.set_presumed_rank(Some(rank)));
        }
    }

    /// Ranks that a source feeds.
    #[must_use]
    pub fn ranks_of(&self, source: SourceId) -> Vec<DpRank> {
        let source = self.sources.get(&source);
        source.map_or_else(Vec::new, |source| source.ranks().iter().map(|&(at, _)| at).collect())
    }

    /// Whether this is the only rank that a source feeds.
    #[must_use]
    pub fn feeds_only(&self, source: SourceId, rank: DpRank) -> bool {
        let source = self.sources.get(&source);
        source.is_none_or(|source| source.ranks().iter().all(|&(at, _)| at == rank))
    }

    /// Records that a batch of a source states a rank. A presumed rank that no batch has stated is removed
    /// with the first batch of another rank, unless another source feeds it.
    ///
    /// # Errors
    /// If the source is unknown, or its worker has too many ranks.
    pub fn name_rank(&mut self, source: SourceId, rank: DpRank) -> Result<(), IndexError> {
        let Some(presumed) = self.source(source)?.presumed_rank() else { return Ok(()) };
        if presumed != rank {
            self.rank_of(source, rank)?;
            self.leave_rank(source, presumed);
        }
        self.change_source(source, |source| source.set_presumed_rank(None));
        Ok(())
    }

    /// Disconnects a source from a rank at which it has stored no blocks. Removes the rank if no other source
    /// feeds it.
    fn leave_rank(&mut self, id: SourceId, rank: DpRank) {
        let Some(source) = self.sources.get_mut(&id) else { return };
        let Some(index) = source.remove_rank(rank) else { return };
        let name = source.worker().clone();
        if let Some(Some(holder)) = self.holders.get_mut(index as usize) {
            holder.forget_source(id);
            let is_left = holder.fed_by().is_empty();
            self.recount(index);
            self.recount_short_ranks(id);
            if !is_left {
                return;
            }
        }
        let Some(worker) = self.workers.get_mut(&name) else { return };
        worker.ranks.retain(|&(at, _)| at != rank);
        worker.has_news = true;
        for &(_, other) in &worker.ranks {
            if let Some(Some(other)) = self.holders.get_mut(other as usize) {
                other.dumps_mut().abort("a rank was removed");
            }
        }
        self.remove_ranks(&name, &[index]);
    }

    pub(crate) fn source(&self, id: SourceId) -> Result<&Source, IndexError> {
        self.sources.get(&id).ok_or(IndexError::UnknownSource { source_id: id })
    }

    /// How changes of a source in a tier are counted now.
    pub(crate) fn announcement(
        &self,
        id: SourceId,
        tier: Tier,
    ) -> Result<Announcement, IndexError> {
        let source = self.source(id)?;
        Ok(Announcement { source: id, tier, mode: source.mode(), epoch: source.epoch() })
    }

    /// The holder of a source's rank, created if necessary.
    pub(crate) fn rank_of(
        &mut self,
        id: SourceId,
        rank: DpRank,
    ) -> Result<HolderIndex, IndexError> {
        let source = self.source(id)?;
        if let Some(holder) = source.holder_of(rank) {
            return Ok(holder);
        }
        let worker = source.worker().clone();
        let made = self.make_rank(&worker, rank);
        match &made {
            Ok(holder) => self.feed_rank(id, rank, *holder),
            Err(_) => self.change_source(id, Source::lack_rank),
        }
        made
    }

    /// Makes a source feed a rank.
    fn feed_rank(&mut self, id: SourceId, rank: DpRank, holder: HolderIndex) {
        let has_digests = self.has_digests(id);
        self.change_source(id, |source| source.add_rank(rank, holder));
        if let Some(Some(at)) = self.holders.get_mut(holder as usize) {
            at.feed(id);
            if has_digests {
                at.start_digest(id, RankDigest::default());
            }
        }
        self.recount(holder);
    }

    /// The holder of a worker's rank, created if necessary.
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
        if let Some(room) = &mut self.room_bytes {
            let Some(left) = room.checked_sub(RANK_BYTES) else {
                return Err(IndexError::NoRoom { worker: name.clone() });
            };
            *room = left;
        }
        for &(_, other) in &worker.ranks {
            if let Some(Some(other)) = self.holders.get_mut(other as usize) {
                other.dumps_mut().abort("a rank was added");
            }
        }
        let index = self.free_holders.pop().unwrap_or(index_u32(self.holders.len()));
        worker.ranks.insert(at, (rank, index));
        let holder = Some(Box::new(Holder::new(name.clone(), rank, index)));
        match self.holders.get_mut(index as usize) {
            Some(slot) => *slot = holder,
            None => self.holders.push(holder),
        }
        self.roles.add_rank(name, index);
        self.list(index);
        set_present(&mut self.present, [index], !self.roles.is_pool(name));
        self.recount(index);
        Ok(index)
    }

    /// Inserts a rank into the order of answers.
    fn list(&mut self, rank: HolderIndex) {
        let Self { listing, holders, .. } = self;
        let key = |at: HolderIndex| {
            let holder = holders.get(at as usize)?.as_deref()?;
            Some((holder.worker(), holder.rank()))
        };
        let own = key(rank);
        listing.insert(rank, |other| key(other) < own);
        self.present.resize(self.holders.len().div_ceil(64), 0);
    }

    /// Makes a worker a pool, with all its blocks: queries no longer list it, and its blocks count for its
    /// readers if a query requests that.
    pub fn set_pool(&mut self, worker: &WorkerId) {
        let ranks = ranks(&self.workers, worker);
        if self.roles.set_pool(worker, ranks) {
            set_present(&mut self.present, ranks.iter().map(|&(_, at)| at), false);
        }
    }

    /// Sets the pools that a worker reads, replacing earlier ones. The pools may still be unknown.
    pub fn set_reads(&mut self, worker: &WorkerId, pools: &[WorkerId]) {
        self.roles.set_reads(worker, pools, ranks(&self.workers, worker));
    }

    /// Sets the blocks per chunk of a worker's connector, by tier; 0 for tiers without chunks. In a tier with
    /// chunks, a block counts only if the tier has its complete chunk: with `n` blocks per chunk, chunk `k`
    /// has the blocks from `k * n` to `(k + 1) * n - 1` of a prompt.
    pub fn set_chunks(&mut self, worker: &WorkerId, sizes: [u32; Tier::COUNT]) {
        self.roles.set_chunks(worker, sizes, ranks(&self.workers, worker));
    }

    /// Sets the facts about a worker's engine, which limit how much of a prompt its ranks match.
    pub fn set_facts(&mut self, worker: &WorkerId, facts: EngineFacts) {
        self.roles.set_facts(worker, facts, ranks(&self.workers, worker));
    }

    /// Clears a worker's roles: pool, reader of pools, chunks, and facts.
    pub fn forget_roles(&mut self, worker: &WorkerId) {
        let ranks = ranks(&self.workers, worker);
        if self.roles.forget(worker, ranks) {
            set_present(&mut self.present, ranks.iter().map(|&(_, at)| at), true);
        }
    }

    pub(crate) fn holder_at(&self, holder: HolderIndex) -> Option<&Holder> {
        self.holders.get(holder as usize)?.as_deref()
    }

    /// Sets the status of a source; ignores unknown sources. The index may show a worse state than the
    /// reported one: during a change, or if it lacks blocks.
    pub fn set_status(&mut self, source: SourceId, status: SourceStatus) {
        self.change_source(source, |source| source.report(status));
    }

    /// Applies new meanings of a source's names. The next image and each dump contain them. Owners pass
    /// bounded parts.
    pub fn change_meanings(&mut self, source: SourceId, changes: &[NameChange]) {
        let changed_max = self.changed_names_max();
        if let Some(source) = self.sources.get_mut(&source) {
            source.meanings.change(changes, changed_max);
        }
    }

    /// Removes all meanings of a source's names, because all its names were removed.
    pub fn clear_meanings(&mut self, source: SourceId) {
        if let Some(source) = self.sources.get_mut(&source) {
            source.meanings.clear();
        }
    }

    /// Meanings of a source's names besides their tokens, by rank and name.
    #[must_use]
    pub fn meanings(&self, source: SourceId) -> Vec<(DpRank, BlockName, NameMeaning)> {
        self.sources
            .get(&source)
            .map_or_else(Vec::new, |source| source.meanings.entries().collect())
    }

    /// Maximum number of a source's changed names that are noted for its next image.
    pub(crate) const fn changed_names_max(&self) -> usize {
        match self.limits.changes {
            Some(changes) => changes.names_max,
            None => 0,
        }
    }

    /// Begins or continues a change that takes several calls. Until [`Index::end_change`] the source is not
    /// exact.
    pub fn begin_change(&mut self, source: SourceId) {
        self.change_source(source, |source| source.set_changing(true));
    }

    /// Ends a change of several calls.
    pub fn end_change(&mut self, source: SourceId) {
        self.change_source(source, |source| source.set_changing(false));
    }

    /// Marks a source as lacking blocks that it stored. Until a clear, it is partial at best.
    pub fn mark_incomplete(&mut self, source: SourceId) {
        self.change_source(source, Source::mark_incomplete);
    }

    /// Marks a source without blocks as complete. If only one rank was cleared, the source still lacks the
    /// ranks that were rejected.
    pub(crate) fn complete_if_empty(&mut self, source: SourceId, all_ranks: bool) {
        self.change_source(source, |source| source.complete_if_empty(all_ranks));
    }

    /// Clears the suspect mark of all blocks of a source.
    pub(crate) fn clear_suspects(&mut self, source: SourceId) {
        self.change_source(source, Source::clear_suspects);
    }

    /// Records that blocks of a rank were evicted, or rejected as a consequence. The sources that feed the
    /// rank are partial at best until they are cleared.
    pub(crate) fn mark_short(&mut self, holder: HolderIndex, blocks: u64) {
        self.mark_sources_short(holder, blocks, |_| true);
    }

    /// Records that `blocks` blocks of a rank were evicted, for the sources of the rank that `is_affected`
    /// selects. No effect if `blocks` is 0, or if no source is selected.
    pub(crate) fn mark_sources_short(
        &mut self,
        holder: HolderIndex,
        blocks: u64,
        is_affected: impl Fn(&SourceId) -> bool,
    ) {
        let Some(Some(at)) = self.holders.get_mut(holder as usize) else {
            return;
        };
        let sources = at.fed_by().iter().copied();
        let lacking = sources.filter(|id| blocks > 0 && is_affected(id));
        let (known, new): (Vec<_>, Vec<_>) =
            lacking.partition(|id| at.short_sources().contains(id));
        if known.is_empty() && new.is_empty() {
            return;
        }
        at.add_shortfall(blocks, &new);
        for id in new {
            self.change_source(id, Source::add_short_rank);
        }
    }

    /// Recounts the ranks in which a source may lack blocks, after a clear.
    pub(crate) fn recount_short_ranks(&mut self, id: SourceId) {
        let Some(source) = self.sources.get(&id) else {
            return;
        };
        let ranks = source.ranks().iter().filter_map(|&(_, holder)| self.holder_at(holder));
        let short_ranks = ranks.filter(|holder| holder.short_sources().contains(&id)).count();
        self.change_source(id, |source| source.set_short_ranks(short_ranks));
    }

    /// Updates the totals after a change of a rank.
    pub(crate) fn recount(&mut self, holder: HolderIndex) {
        if let Some(Some(holder)) = self.holders.get_mut(holder as usize) {
            let (before, now) = holder.recount();
            self.totals.replace(before, now);
        }
    }

    fn change_source(&mut self, source: SourceId, change: impl FnOnce(&mut Source)) {
        if let Some(source) = self.sources.get_mut(&source) {
            change(source);
        }
    }

    /// Status of a source.
    #[must_use]
    pub fn status(&self, source: SourceId) -> Option<&SourceStatus> {
        self.sources.get(&source).map(Source::status)
    }

    /// Borrows the rank that a source's event changes, created if necessary.
    pub(crate) fn change(
        &mut self,
        source: SourceId,
        rank: DpRank,
    ) -> Result<RankChange<'_>, IndexError> {
        let holder = self.rank_of(source, rank)?;
        self.change_of(holder).ok_or(IndexError::UnknownSource { source_id: source })
    }

    /// Whether a source has digests, which it then has at each of its ranks.
    pub(crate) fn has_digests(&self, source: SourceId) -> bool {
        self.digests_of(source).next().is_some()
    }

    pub(crate) fn digests_of(
        &self,
        source: SourceId,
    ) -> impl Iterator<Item = (DpRank, &RankDigest)> {
        let ranks = self.source(source).map(Source::ranks).unwrap_or_default();
        ranks.iter().filter_map(move |&(rank, holder)| {
            self.holder_at(holder)?.digest_of(source).map(|digest| (rank, digest))
        })
    }
}
