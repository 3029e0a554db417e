//! Workers and the sources that feed them: what the index knows of each, beside the blocks.

use crate::cursor::SweepCursor;
use crate::meanings::Meanings;
use crate::sets::HolderIndex;
use kvasir_proto::types::{
    CopyMode, Cursor, DpRank, Reason, SourceState, SourceStatus, StateReason, WorkerId,
};
use smallvec::SmallVec;
use std::fmt;
use std::sync::Arc;

/// One event stream of a worker, within one index. Never used twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SourceId(pub u32);

impl fmt::Display for SourceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// One rank of a worker, within one index and as long as the worker exists.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HolderId(pub(crate) HolderIndex);

/// State of one source.
#[derive(Debug)]
pub(crate) struct Source {
    worker: WorkerId,
    name: Arc<str>,
    mode: CopyMode,
    /// Counts losses: copies announced before the latest are suspect.
    epoch: u32,
    /// The loss epoch up to which nothing that it holds is suspect.
    certain_epoch: u32,
    /// Ranks that it feeds.
    ranks: SmallVec<[(DpRank, HolderIndex); 1]>,
    /// The rank among them that no batch has named yet, if any.
    presumed_rank: Option<DpRank>,
    /// Number of (name, tier) keys of which it holds copies.
    keys: u64,
    /// As reported, but for the state, which [`Source::update_state`] derives.
    status: SourceStatus,
    /// State as reported.
    reported: SourceState,
    /// Whether a change is under way that takes several calls.
    changing: bool,
    /// Whether the index refused blocks that it stored.
    incomplete: bool,
    /// How often it refused a rank of it.
    refused_ranks: u64,
    /// Number of its ranks in which it may lack shed blocks.
    short_ranks: usize,
    /// What its names mean besides their tokens.
    pub(crate) meanings: Meanings,
    /// The sweep of it that is under way.
    pub(crate) sweep: Option<SweepCursor>,
    /// What the last image recorded of it.
    imaged: Option<ImagedSource>,
}

/// What an image records of a source, without what never changes and what is transient.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ImagedSource {
    pub(crate) state: SourceState,
    applied: Option<Cursor>,
    head: Option<u64>,
    ranks: usize,
    pub(crate) incomplete: bool,
    /// Whether some of what it holds is suspect.
    pub(crate) suspect: bool,
}

impl Source {
    pub(crate) fn new(worker: WorkerId, name: &str, mode: CopyMode) -> Self {
        Self {
            worker,
            name: name.into(),
            mode,
            epoch: 0,
            certain_epoch: 0,
            ranks: SmallVec::new(),
            presumed_rank: None,
            keys: 0,
            status: SourceStatus::default(),
            reported: SourceState::Cold,
            changing: false,
            incomplete: false,
            refused_ranks: 0,
            short_ranks: 0,
            meanings: Meanings::default(),
            sweep: None,
            imaged: None,
        }
    }

    pub(crate) const fn worker(&self) -> &WorkerId {
        &self.worker
    }

    pub(crate) const fn name(&self) -> &Arc<str> {
        &self.name
    }

    pub(crate) const fn mode(&self) -> CopyMode {
        self.mode
    }

    pub(crate) const fn status(&self) -> &SourceStatus {
        &self.status
    }

    // === ranks ===

    /// Ranks that it feeds, in order of arrival.
    pub(crate) fn ranks(&self) -> &[(DpRank, HolderIndex)] {
        &self.ranks
    }

    /// The holder of one of its ranks.
    pub(crate) fn holder_of(&self, rank: DpRank) -> Option<HolderIndex> {
        self.ranks.iter().find(|(at, _)| *at == rank).map(|&(_, holder)| holder)
    }

    pub(crate) fn feeds(&self, holder: HolderIndex) -> bool {
        self.ranks.iter().any(|&(_, at)| at == holder)
    }

    pub(crate) fn add_rank(&mut self, rank: DpRank, holder: HolderIndex) {
        debug_assert!(self.holder_of(rank).is_none(), "rank {rank} is new to the source");
        self.ranks.push((rank, holder));
    }

    /// It feeds a rank no longer. Returns the rank's holder.
    pub(crate) fn remove_rank(&mut self, rank: DpRank) -> Option<HolderIndex> {
        let at = self.ranks.iter().position(|&(other, _)| other == rank)?;
        // A sweep under way counts ranks: it begins again.
        self.sweep = None;
        Some(self.ranks.remove(at).1)
    }

    pub(crate) const fn presumed_rank(&self) -> Option<DpRank> {
        self.presumed_rank
    }

    pub(crate) const fn set_presumed_rank(&mut self, rank: Option<DpRank>) {
        self.presumed_rank = rank;
    }

    // === copies ===

    /// Number of (name, tier) keys of which it holds copies.
    pub(crate) const fn keys(&self) -> u64 {
        self.keys
    }

    pub(crate) const fn add_keys(&mut self, keys: u64) {
        self.keys += keys;
    }

    pub(crate) fn drop_keys(&mut self, keys: u64) {
        debug_assert!(keys <= self.keys, "a source loses keys that it holds");
        self.keys -= keys;
    }

    /// Copies announced in an earlier epoch are suspect.
    pub(crate) const fn epoch(&self) -> u32 {
        self.epoch
    }

    /// Events were lost: all that it holds is suspect until it is announced again.
    pub(crate) const fn raise_epoch(&mut self) {
        self.epoch = self.epoch.saturating_add(1);
    }

    /// Nothing that it holds is suspect any more.
    pub(crate) const fn settle_suspects(&mut self) {
        self.certain_epoch = self.epoch;
    }

    // === state ===

    /// Takes a status as its owner reports it.
    pub(crate) fn report(&mut self, status: SourceStatus) {
        self.reported = status.state;
        self.status = status;
        self.update_state();
    }

    pub(crate) fn set_changing(&mut self, changing: bool) {
        self.changing = changing;
        self.update_state();
    }

    /// The index refused blocks that it stored: until a clear it is partial at best.
    pub(crate) fn mark_incomplete(&mut self) {
        self.incomplete = true;
        self.update_state();
    }

    /// The index refused one of its ranks: until a clear of all ranks it is partial at best.
    pub(crate) fn lack_rank(&mut self) {
        self.refused_ranks = self.refused_ranks.saturating_add(1);
        self.mark_incomplete();
    }

    /// A source that holds nothing lacks nothing, unless it lacks a rank and not all of them were cleared.
    pub(crate) fn complete_if_empty(&mut self, all_ranks: bool) {
        if all_ranks {
            self.refused_ranks = 0;
        }
        self.incomplete &= self.keys > 0 || self.refused_ranks > 0;
        self.update_state();
    }

    /// Sets the number of its ranks in which it may lack shed blocks.
    pub(crate) fn set_short_ranks(&mut self, short_ranks: usize) {
        self.short_ranks = short_ranks;
        self.update_state();
    }

    pub(crate) fn add_short_rank(&mut self) {
        self.set_short_ranks(self.short_ranks + 1);
    }

    /// Why the index lacks blocks that it stored, beyond what was reported.
    pub(crate) fn own_reasons(&self) -> impl Iterator<Item = Reason> {
        // What the link refused has a reason already.
        let explains = |at: &StateReason| at.reason.is_of_refused_blocks();
        let refused = self.incomplete && !self.status.reasons.iter().any(explains);
        // An agent reports the state without its reasons.
        let unexplained = self.reported == SourceState::Partial && self.status.reasons.is_empty();
        let refused = refused || unexplained;
        let refused = refused.then_some(Reason::RefusedBlocks);
        refused.into_iter().chain((self.short_ranks > 0).then_some(Reason::ShedBlocks))
    }

    /// Whether the index lacks blocks that it stored: refused ones, or shed ones.
    pub(crate) const fn is_incomplete(&self) -> bool {
        self.incomplete || self.short_ranks > 0
    }

    /// Sets the state to the reported one, or a worse one.
    fn update_state(&mut self) {
        let changing = if self.changing { SourceState::CatchingUp } else { SourceState::Exact };
        let is_partial = self.is_incomplete() || !self.status.reasons.is_empty();
        let partial = if is_partial { SourceState::Partial } else { SourceState::Exact };
        self.status.state = self.reported.max(changing).max(partial);
    }

    // === images ===

    /// What an image taken now records of it.
    pub(crate) fn to_image(&self) -> ImagedSource {
        ImagedSource {
            state: self.reported,
            applied: self.status.applied,
            head: self.status.head,
            ranks: self.ranks.len(),
            incomplete: self.incomplete,
            suspect: self.epoch > self.certain_epoch,
        }
    }

    /// An image has recorded it as it is now.
    pub(crate) fn mark_imaged(&mut self) {
        self.imaged = Some(self.to_image());
    }

    /// Whether an image taken now would record something new.
    pub(crate) fn has_changed(&self) -> bool {
        self.imaged.as_ref() != Some(&self.to_image())
    }
}

/// State of one worker.
#[derive(Debug, Default)]
pub(crate) struct Worker {
    /// By rank.
    pub(crate) ranks: Vec<(DpRank, HolderIndex)>,
    /// In order of arrival.
    pub(crate) sources: Vec<SourceId>,
    /// Whether the next image has news that neither ranks nor sources show: a source was removed, or
    /// the last image was abandoned.
    pub(crate) has_news: bool,
}
