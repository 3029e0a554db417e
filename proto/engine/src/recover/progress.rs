use super::config::{NUMBERS_AHEAD_MAX, PAST_INCARNATIONS_MAX};
use kvasir_proto::types::{Cursor, Incarnation};
use std::sync::Arc;

/// What the index has of an incarnation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Base {
    /// Nothing, and which batch comes first is not known.
    Open,
    /// Nothing yet: the incarnation begins with this batch.
    Before(u64),
    /// All batches up to this one are in, or were given up.
    At(u64),
}

/// Whether the source is believed to be in an incarnation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Trust {
    Full,
    /// An earlier incarnation announced itself: the source is to be asked for its current one.
    Doubted,
    /// It ended once, and only an answer of the source can resume it.
    Returned,
}

/// The current incarnation of a source, and how far it was applied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Progress {
    pub(super) incarnation: Incarnation,
    pub(super) base: Base,
    /// Highest number known to exist.
    pub(super) head: Option<u64>,
    /// Number that is to be applied before the source has caught up.
    pub(super) target: Option<u64>,
    /// A batch that was refused: those before it are missing.
    pub(super) refused: Option<u64>,
    /// Nothing is applied before a dump: what is missing is not retained, or the index has a part of a
    /// dump and so what the source held at no moment.
    pub(super) needs_dump: bool,
    /// The index lacks blocks that only a dump brings back, though no batch was lost.
    pub(super) lacks_blocks: bool,
    pub(super) trust: Trust,
    /// Rounds in a row whose batches did not follow from the cursor, nor from each other.
    pub(super) holes: u32,
}

impl Progress {
    pub(super) const fn new(incarnation: Incarnation, base: Base) -> Self {
        Self {
            incarnation,
            base,
            head: None,
            target: None,
            refused: None,
            needs_dump: false,
            lacks_blocks: false,
            trust: Trust::Full,
            holes: 0,
        }
    }

    /// Last batch applied.
    pub(super) const fn applied(&self) -> Option<u64> {
        match self.base {
            Base::At(applied) => Some(applied),
            Base::Open | Base::Before(_) => None,
        }
    }

    /// Number of the next batch, if only that one may come next.
    pub(super) const fn expected(&self) -> Option<u64> {
        match self.base {
            Base::At(applied) => applied.checked_add(1),
            Base::Before(first) => Some(first),
            Base::Open => None,
        }
    }

    /// Whether a batch of that number is in already, or was given up, or belongs before the first.
    pub(super) const fn covers(&self, sequence: u64) -> bool {
        match self.base {
            Base::At(applied) => sequence <= applied,
            Base::Before(first) => sequence < first,
            Base::Open => false,
        }
    }

    pub(super) fn cursor(&self) -> Option<Cursor> {
        let (incarnation, fingerprint) = (self.incarnation, None);
        self.applied().map(|sequence| Cursor { incarnation, sequence, fingerprint })
    }

    /// Whether a number can be believed to be one of the source's.
    pub(super) fn believes(&self, sequence: u64) -> bool {
        let near = |expected: u64| sequence.saturating_sub(expected) < NUMBERS_AHEAD_MAX;
        self.expected().is_none_or(near)
    }

    /// Takes note of a number that exists.
    pub(super) fn note_head(&mut self, sequence: u64) {
        if self.believes(sequence) {
            self.head = self.head.max(Some(sequence));
        }
    }

    /// Whether batches exist that are not applied.
    pub(super) fn is_behind(&self) -> bool {
        self.head.is_some_and(|head| !self.covers(head))
    }
}

/// Incarnations that ended, the latest last.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Past(Arc<[Incarnation]>);

impl Past {
    pub(super) fn of(past: &[Incarnation]) -> Self {
        let mut known = Self::default();
        past.iter().for_each(|&incarnation| known.add(incarnation));
        known
    }

    pub(super) fn add(&mut self, incarnation: Incarnation) {
        self.remove(incarnation);
        let excess = (self.0.len() + 1).saturating_sub(PAST_INCARNATIONS_MAX);
        self.0 = self.0.iter().skip(excess).copied().chain([incarnation]).collect();
        debug_assert!(self.0.len() <= PAST_INCARNATIONS_MAX, "few are remembered");
    }

    pub(super) fn remove(&mut self, incarnation: Incarnation) {
        if self.contains(incarnation) {
            self.0 = self.0.iter().filter(|at| **at != incarnation).copied().collect();
        }
    }

    pub(super) fn contains(&self, incarnation: Incarnation) -> bool {
        self.0.contains(&incarnation)
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn list(&self) -> Arc<[Incarnation]> {
        Arc::clone(&self.0)
    }
}
