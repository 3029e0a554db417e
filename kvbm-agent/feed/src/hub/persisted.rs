//! State of a source on disk, and whether its engine survived. Pure.

use crate::disk::{Flaws, PersistedSource, SourceChange, SourceKind, SourcePosition};
use kvasir_proto::limits::TOLD_PAST_INCARNATIONS_MAX;
use kvasir_proto::types::{CopyMode, DpRank, Incarnation, SourceState};
use std::mem;
use std::sync::Arc;

/// One source's part of the journal on disk.
#[derive(Debug)]
pub(super) struct Persisted {
    name: String,
    kind: SourceKind,
    copy_mode: CopyMode,
    /// Position of the source; `None` before its first batch.
    at: Option<PersistedSource>,
    /// Flaws from before the source's first batch.
    early: Flaws,
    /// Ended incarnations, the latest last.
    past: Vec<Incarnation>,
    /// Whether the source's blocks were dropped, and no batch was taken since.
    is_emptied: bool,
    /// Whether another process wrote the position, and the engine has not reported since.
    is_pending: bool,
}

impl Persisted {
    pub(super) fn new(name: &str, kind: SourceKind, copy_mode: CopyMode) -> Self {
        let name = name.to_owned();
        let early = Flaws::default();
        let past = Vec::new();
        Self { name, kind, copy_mode, at: None, early, past, is_emptied: false, is_pending: false }
    }

    /// Restores a source from disk.
    pub(super) fn from_disk(source: PersistedSource) -> Self {
        let PersistedSource { name, kind, copy_mode, past, .. } = source.clone();
        let at = Some(source);
        let early = Flaws::default();
        Self { name, kind, copy_mode, at, early, past, is_emptied: false, is_pending: true }
    }

    /// Position of the source, if its engine has not reported yet.
    pub(super) fn pending(&self) -> Option<&PersistedSource> {
        self.at.as_ref().filter(|_| self.is_pending)
    }

    /// Records that the engine has reported. Returns whether this is new.
    pub(super) const fn confirm(&mut self) -> bool {
        mem::replace(&mut self.is_pending, false)
    }

    /// Records a batch of a rank, with the source's position. A clear (`is_cleared`) removes earlier flaws if the
    /// source has fed only this rank.
    pub(super) fn record_batch(
        &mut self,
        rank: DpRank,
        is_cleared: bool,
        position: &SourcePosition,
    ) {
        let SourcePosition { cursor, ref learned, flaws, .. } = *position;
        self.is_emptied = false;
        let name = &self.name;
        let copy_mode = self.copy_mode;
        let at = self.at.get_or_insert_with(|| PersistedSource {
            name: name.clone(),
            kind: self.kind,
            copy_mode,
            cursor,
            flaws: mem::take(&mut self.early),
            past: self.past.clone(),
            learned: Arc::clone(learned),
            ranks: Vec::new(),
        });
        at.cursor = cursor;
        at.learned.clone_from(learned);
        if !at.ranks.contains(&rank) {
            at.ranks.push(rank);
        }
        // A clear covers one rank. With other ranks, earlier flaws may remain.
        if is_cleared && at.ranks == [rank] {
            at.flaws = Flaws::default();
        }
        // A clear in the batch ends earlier flaws, not its own.
        at.flaws = at.flaws.and(flaws);
    }

    /// Ends the source's incarnation, and adds it to the past ones. Returns early if the source has no position yet.
    pub(super) fn end_incarnation(&mut self) {
        self.early = Flaws::default();
        let Some(at) = self.at.take() else { return };
        let incarnation = at.cursor.incarnation;
        self.past.retain(|past| *past != incarnation);
        if self.past.len() >= TOLD_PAST_INCARNATIONS_MAX {
            self.past.remove(0);
        }
        self.past.push(incarnation);
        debug_assert!(self.past.len() <= TOLD_PAST_INCARNATIONS_MAX, "few are retained");
    }

    /// Records that events of the incarnation were lost permanently.
    pub(super) fn record_loss(&mut self) {
        self.is_emptied = true;
        self.add(Flaws { has_lost: true, ..Flaws::default() });
    }

    /// Records differences between the source and the agent's stream.
    pub(super) fn add(&mut self, flaws: Flaws) {
        let present = self.at.as_mut().map_or(&mut self.early, |at| &mut at.flaws);
        *present = present.and(flaws);
    }

    pub(super) const fn set_copy_mode(&mut self, copy_mode: CopyMode) {
        self.copy_mode = copy_mode;
    }

    /// The source's reported state, worsened by earlier flaws.
    pub(super) fn state(&self, state: SourceState) -> SourceState {
        let Some(at) = self.at.as_ref().filter(|_| state != SourceState::Cold) else {
            return state;
        };
        let lost = if at.flaws.has_lost { SourceState::Degraded } else { SourceState::Exact };
        let lacks = if at.flaws.lacks_blocks { SourceState::Partial } else { SourceState::Exact };
        state.max(lost).max(lacks)
    }

    /// The position to write.
    pub(super) fn change(&self) -> SourceChange<'_> {
        match &self.at {
            None => SourceChange::Forget(&self.name),
            Some(at) if self.is_emptied => SourceChange::PutEmpty(at),
            Some(at) => SourceChange::Put(at),
        }
    }
}
