//! What is on disk of a source, and whether its engine survived: pure.

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
    /// Its position; none before its first batch.
    at: Option<PersistedSource>,
    /// Flaws from before its first batch that was taken.
    early: Flaws,
    /// Incarnations that are over, the latest last.
    past: Vec<Incarnation>,
    /// Its blocks were dropped, and no batch was taken since.
    is_emptied: bool,
    /// Another process wrote it, and its engine was not received yet.
    is_pending: bool,
}

impl Persisted {
    pub(super) fn new(name: &str, kind: SourceKind, copy_mode: CopyMode) -> Self {
        let name = name.to_owned();
        let early = Flaws::default();
        let past = Vec::new();
        Self { name, kind, copy_mode, at: None, early, past, is_emptied: false, is_pending: false }
    }

    /// A source that is on disk.
    pub(super) fn of(source: PersistedSource) -> Self {
        let PersistedSource { name, kind, copy_mode, past, .. } = source.clone();
        let at = Some(source);
        let early = Flaws::default();
        Self { name, kind, copy_mode, at, early, past, is_emptied: false, is_pending: true }
    }

    /// Its position, if its engine was not received yet.
    pub(super) fn pending(&self) -> Option<&PersistedSource> {
        self.at.as_ref().filter(|_| self.is_pending)
    }

    /// Its engine was received. Returns whether that is news.
    pub(super) const fn confirm(&mut self) -> bool {
        mem::replace(&mut self.is_pending, false)
    }

    /// A batch is taken, which has a clear or has none.
    pub(super) fn take(&mut self, rank: DpRank, is_cleared: bool, position: &SourcePosition) {
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
        // A clear is of one rank: what others may lack is not known.
        if is_cleared && at.ranks == [rank] {
            at.flaws = Flaws::default();
        }
        // A clear in the batch ends earlier flaws, not its own.
        at.flaws = at.flaws.and(flaws);
    }

    /// Its incarnation is over.
    pub(super) fn end(&mut self) {
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

    /// Events of its incarnation were lost for good.
    pub(super) fn lose(&mut self) {
        self.is_emptied = true;
        self.add(Flaws { has_lost: true, ..Flaws::default() });
    }

    /// Notes what the agent's stream does not show.
    pub(super) fn add(&mut self, flaws: Flaws) {
        let present = self.at.as_mut().map_or(&mut self.early, |at| &mut at.flaws);
        *present = present.and(flaws);
    }

    pub(super) const fn set_copy_mode(&mut self, copy_mode: CopyMode) {
        self.copy_mode = copy_mode;
    }

    /// The state that it reports, with what the process before has lost.
    pub(super) fn state(&self, state: SourceState) -> SourceState {
        let Some(at) = self.at.as_ref().filter(|_| state != SourceState::Cold) else {
            return state;
        };
        let lost = if at.flaws.has_lost { SourceState::Degraded } else { SourceState::Exact };
        let lacks = if at.flaws.lacks_blocks { SourceState::Partial } else { SourceState::Exact };
        state.max(lost).max(lacks)
    }

    /// What is to be written.
    pub(super) fn change(&self) -> SourceChange<'_> {
        match &self.at {
            None => SourceChange::Forget(&self.name),
            Some(at) if self.is_emptied => SourceChange::PutEmpty(at),
            Some(at) => SourceChange::Put(at),
        }
    }
}
