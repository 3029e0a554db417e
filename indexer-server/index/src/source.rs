//! Workers and their sources: state besides the blocks.

use crate::cursor::SweepCursor;
use crate::meanings::Meanings;
use crate::sets::HolderIndex;
use kvasir_proto::types::{
    CopyMode, Cursor, DpRank, Reason, SourceState, SourceStatus, StateReason, WorkerId,
};
use smallvec::SmallVec;
use std::fmt;
use std::sync::Arc;

/// Id of one event stream of a worker, within one index. Never reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SourceId(pub u32);

impl fmt::Display for SourceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// Id of one rank of a worker, within one index, while the worker exists.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HolderId(pub(crate) HolderIndex);

/// State of one source.
#[derive(Debug)]
pub(crate) struct Source {
    worker: WorkerId,
    name: Arc<str>,
    mode: CopyMode,
    /// Number of losses: copies announced before the latest loss are suspect.
    epoch: u32,
    /// The loss epoch up to which no block of the source is suspect.
    certain_epoch: u32,
    /// Ranks that the source feeds.
    ranks: SmallVec<[(DpRank, HolderIndex); 1]>,
    /// The rank among `ranks` that no batch has stated yet, if any.
    presumed_rank: Option<DpRank>,
    /// Number of (name, tier) keys with copies of this source.
    keys: u64,
    /// The reported status, with the state that [`Source::update_state`] derives.
    status: SourceStatus,
    /// The reported state.
    reported: SourceState,
    /// Whether a change of several calls is in progress.
    changing: bool,
    /// Whether the index rejected blocks of the source.
    incomplete: bool,
    /// How often the index rejected a rank of the source.
    refused_ranks: u64,
    /// Number of ranks in which the source may lack evicted blocks.
    short_ranks: usize,
    /// Meanings of the source's names besides their tokens.
    pub(crate) meanings: Meanings,
    /// The running sweep of the source.
    pub(crate) sweep: Option<SweepCursor>,
    /// The state in the last image.
    imaged: Option<ImagedSource>,
}

/// The part of a source's state that images contain, without constant and transient data.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ImagedSource {
    pub(crate) state: SourceState,
    applied: Option<Cursor>,
    head: Option<u64>,
    ranks: usize,
    pub(crate) incomplete: bool,
    /// Whether some of the source's blocks are suspect.
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

    /// Ranks that the source feeds, in order of arrival.
    pub(crate) fn ranks(&self) -> &[(DpRank, HolderIndex)] {
        &self.ranks
    }

    /// The holder of one of the source's ranks.
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

    /// Disconnects the source from a rank. Returns the rank's holder.
    pub(crate) fn remove_rank(&mut self, rank: DpRank) -> Option<HolderIndex> {
        let at = self.ranks.iter().position(|&(other, _)| other == rank)?;
        // A running sweep counts ranks, so it begins again.
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

    /// Number of (name, tier) keys with copies of this source.
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

    /// Current loss epoch. Copies announced in an earlier epoch are suspect.
    pub(crate) const fn epoch(&self) -> u32 {
        self.epoch
    }

    /// Marks all blocks of the source as suspect until they are announced again, because events were lost.
    pub(crate) const fn raise_epoch(&mut self) {
        self.epoch = self.epoch.saturating_add(1);
    }

    /// Clears the suspect mark of all blocks of the source.
    pub(crate) const fn clear_suspects(&mut self) {
        self.certain_epoch = self.epoch;
    }

    // === state ===

    /// Applies a reported status.
    pub(crate) fn report(&mut self, status: SourceStatus) {
        self.reported = status.state;
        self.status = status;
        self.update_state();
    }

    pub(crate) fn set_changing(&mut self, changing: bool) {
        self.changing = changing;
        self.update_state();
    }

    /// Records that the index rejected blocks of the source. Until a clear, it is partial at best.
    pub(crate) fn mark_incomplete(&mut self) {
        self.incomplete = true;
        self.update_state();
    }

    /// Records that the index rejected one of the source's ranks. Until a clear of all ranks, it is partial
    /// at best.
    pub(crate) fn lack_rank(&mut self) {
        self.refused_ranks = self.refused_ranks.saturating_add(1);
        self.mark_incomplete();
    }

    /// Marks a source without blocks as complete, unless a rank was rejected and not all ranks were cleared.
    pub(crate) fn complete_if_empty(&mut self, all_ranks: bool) {
        if all_ranks {
            self.refused_ranks = 0;
        }
        self.incomplete &= self.keys > 0 || self.refused_ranks > 0;
        self.update_state();
    }

    /// Sets the number of ranks in which the source may lack evicted blocks.
    pub(crate) fn set_short_ranks(&mut self, short_ranks: usize) {
        self.short_ranks = short_ranks;
        self.update_state();
    }

    pub(crate) fn add_short_rank(&mut self) {
        self.set_short_ranks(self.short_ranks + 1);
    }

    /// Why the index lacks blocks of the source, in addition to the reported reasons.
    pub(crate) fn own_reasons(&self) -> impl Iterator<Item = Reason> {
        // Blocks that the link rejected already have a reason.
        let explains = |at: &StateReason| at.reason.is_of_refused_blocks();
        let refused = self.incomplete && !self.status.reasons.iter().any(explains);
        // An agent reports the state without reasons.
        let unexplained = self.reported == SourceState::Partial && self.status.reasons.is_empty();
        let refused = refused || unexplained;
        let refused = refused.then_some(Reason::RefusedBlocks);
        refused.into_iter().chain((self.short_ranks > 0).then_some(Reason::ShedBlocks))
    }

    /// Whether the index lacks blocks of the source, because they were rejected or evicted.
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

    /// The state of the source for an image.
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

    /// Records that an image has the current state.
    pub(crate) fn mark_imaged(&mut self) {
        self.imaged = Some(self.to_image());
    }

    /// Whether the state differs from the last image.
    pub(crate) fn has_changed(&self) -> bool {
        self.imaged.as_ref() != Some(&self.to_image())
    }
}

/// State of one worker.
#[derive(Debug, Default)]
pub(crate) struct Worker {
    /// Ranks with their holders, in order of rank.
    pub(crate) ranks: Vec<(DpRank, HolderIndex)>,
    /// Sources in order of arrival.
    pub(crate) sources: Vec<SourceId>,
    /// Whether the next image differs for a reason outside ranks and sources: a source was removed, or the
    /// last image was abandoned.
    pub(crate) has_news: bool,
}
