//! What is on disk of a source, and whether its engine survived: pure.

use crate::disk::{PersistedSource, SourceChange, SourceKind, SourcePosition};
use kvasir_proto::limits::TOLD_PAST_INCARNATIONS_MAX;
use kvasir_proto::types::{CopyMode, DpRank, Incarnation, SourceState};
use std::sync::Arc;

/// One source's part of the journal on disk.
#[derive(Debug)]
pub(super) struct Persisted {
    name: String,
    kind: SourceKind,
    copy_mode: CopyMode,
    /// Its position; none before its first batch.
    at: Option<PersistedSource>,
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
        let past = Vec::new();
        Self { name, kind, copy_mode, at: None, past, is_emptied: false, is_pending: false }
    }

    /// A source that is on disk.
    pub(super) fn of(source: PersistedSource) -> Self {
        let PersistedSource { name, kind, copy_mode, past, .. } = source.clone();
        Self { name, kind, copy_mode, at: Some(source), past, is_emptied: false, is_pending: true }
    }

    /// Its position, if its engine was not received yet.
    pub(super) fn pending(&self) -> Option<&PersistedSource> {
        self.at.as_ref().filter(|_| self.is_pending)
    }

    /// Its engine was received. Returns whether that is news.
    pub(super) const fn confirm(&mut self) -> bool {
        std::mem::replace(&mut self.is_pending, false)
    }

    /// A batch is taken, which has a clear or has none.
    pub(super) fn take(&mut self, rank: DpRank, is_cleared: bool, position: &SourcePosition) {
        let SourcePosition { cursor, ref learned, .. } = *position;
        self.is_emptied = false;
        let (name, copy_mode) = (&self.name, self.copy_mode);
        let at = self.at.get_or_insert_with(|| PersistedSource {
            name: name.clone(),
            kind: self.kind,
            copy_mode,
            cursor,
            has_lost: false,
            lacks_blocks: false,
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
            (at.has_lost, at.lacks_blocks) = (false, false);
        }
    }

    /// Its incarnation is over.
    pub(super) fn end(&mut self) {
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
    pub(super) const fn lose(&mut self) {
        self.is_emptied = true;
        if let Some(at) = &mut self.at {
            at.has_lost = true;
        }
    }

    /// It may hold less than was published.
    pub(super) const fn doubt(&mut self) {
        if let Some(at) = &mut self.at {
            at.has_lost = true;
        }
    }

    /// Blocks of it were not taken.
    pub(super) const fn lack(&mut self) {
        if let Some(at) = &mut self.at {
            at.lacks_blocks = true;
        }
    }

    pub(super) const fn set_copy_mode(&mut self, copy_mode: CopyMode) {
        self.copy_mode = copy_mode;
    }

    /// The state that it reports, with what the process before has lost.
    pub(super) fn state(&self, state: SourceState) -> SourceState {
        let Some(at) = self.at.as_ref().filter(|_| state != SourceState::Cold) else {
            return state;
        };
        let lost = if at.has_lost { SourceState::Degraded } else { SourceState::Exact };
        let lacks = if at.lacks_blocks { SourceState::Partial } else { SourceState::Exact };
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
