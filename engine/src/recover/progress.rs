use super::config::{
    NUMBERS_AHEAD_MAX, PAST_INCARNATIONS_KEPT, PAST_INCARNATIONS_MAX, PAST_INCARNATIONS_RESUMED_MAX,
};
use kvasir_proto::limits::UNSTATED_FIRST_SEQUENCE_MAX;
use kvasir_proto::types::{Cursor, Incarnation};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

/// How far the index has applied an incarnation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Base {
    /// No batch is applied, and the first number is unknown.
    Open,
    /// No batch is applied. The incarnation begins with this number.
    Before(u64),
    /// All batches up to this one are applied or lost.
    At(u64),
}

/// Confidence that the source is in an incarnation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Trust {
    Full,
    /// A message contradicted it. The source must be queried for its current incarnation.
    Doubted,
    /// The incarnation ended once. Only an answer of the source can resume it.
    Returned,
}

/// The current incarnation of a source, and how far it is applied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Progress {
    pub(super) incarnation: Incarnation,
    pub(super) base: Base,
    /// The first applied batch, if the incarnation's first number was never stated. Batches before it were
    /// not received.
    pub(super) began_at: Option<u64>,
    /// Highest number known to exist.
    pub(super) head: Option<u64>,
    /// Number that must be applied before the source has caught up.
    pub(super) target: Option<u64>,
    /// A refused batch: batches before it are missing.
    pub(super) refused: Option<u64>,
    /// Batches wait for a dump: the missing ones are no longer retained, or the index has an incomplete dump
    /// and thus an inconsistent state.
    pub(super) needs_dump: bool,
    /// The index lacks blocks that only a dump restores, although no batch was lost.
    pub(super) lacks_blocks: bool,
    pub(super) trust: Trust,
    /// Consecutive rounds whose batches did not follow the cursor or each other.
    pub(super) holes: u32,
}

impl Progress {
    pub(super) const fn new(incarnation: Incarnation, base: Base) -> Self {
        Self {
            incarnation,
            base,
            began_at: None,
            head: None,
            target: None,
            refused: None,
            needs_dump: false,
            lacks_blocks: false,
            trust: Trust::Full,
            holes: 0,
        }
    }

    /// Number of the last applied batch.
    pub(super) const fn applied(&self) -> Option<u64> {
        match self.base {
            Base::At(applied) => Some(applied),
            Base::Open | Base::Before(_) => None,
        }
    }

    /// Number of the next batch, if only one number is possible.
    pub(super) const fn expected(&self) -> Option<u64> {
        match self.base {
            Base::At(applied) => applied.checked_add(1),
            Base::Before(first) => Some(first),
            Base::Open => None,
        }
    }

    /// Whether `sequence` is already passed: the next batch has a higher number.
    pub(super) const fn is_beyond(&self, sequence: u64) -> bool {
        match self.base {
            Base::At(applied) => sequence <= applied,
            Base::Before(first) => sequence < first,
            Base::Open => false,
        }
    }

    /// Whether this number is already applied, lost, or before the first.
    pub(super) fn covers(&self, sequence: u64) -> bool {
        self.is_beyond(sequence) && self.began_at.is_none_or(|first| sequence >= first)
    }

    pub(super) fn cursor(&self) -> Option<Cursor> {
        let incarnation = self.incarnation;
        let fingerprint = None;
        self.applied().map(|sequence| Cursor { incarnation, sequence, fingerprint })
    }

    /// Whether `sequence` is plausible for this source.
    pub(super) fn believes(&self, sequence: u64) -> bool {
        match (self.base, self.expected()) {
            (Base::Open, _) | (_, None) => sequence <= UNSTATED_FIRST_SEQUENCE_MAX,
            (_, Some(expected)) => sequence.saturating_sub(expected) < NUMBERS_AHEAD_MAX,
        }
    }

    /// Records a number that exists.
    pub(super) fn note_head(&mut self, sequence: u64) {
        if self.believes(sequence) {
            self.head = self.head.max(Some(sequence));
        }
    }

    /// Whether batches exist that are not yet applied.
    pub(super) fn is_behind(&self) -> bool {
        self.head.is_some_and(|head| !self.is_beyond(head))
    }
}

/// Past incarnations, the latest last.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Past {
    incarnations: Arc<[Incarnation]>,
    /// When each incarnation ended.
    ended_at: VecDeque<Duration>,
}

impl Past {
    /// Restores the latest incarnations of a checkpoint, as ended at `now`.
    pub(super) fn from_checkpoint(past: &[Incarnation], now: Duration) -> Self {
        let mut known = Self::default();
        let forgotten = past.len().saturating_sub(PAST_INCARNATIONS_RESUMED_MAX);
        past.iter().skip(forgotten).for_each(|&incarnation| known.add(incarnation, now));
        known
    }

    /// Adds an incarnation that ended at `now`. Forgets the earliest beyond the limit.
    pub(super) fn add(&mut self, incarnation: Incarnation, now: Duration) {
        self.remove(incarnation);
        let excess = (self.len() + 1).saturating_sub(PAST_INCARNATIONS_MAX);
        self.ended_at.drain(..excess.min(self.ended_at.len()));
        self.ended_at.push_back(now);
        let kept = self.incarnations.iter().skip(excess).copied();
        self.incarnations = kept.chain([incarnation]).collect();
    }

    /// Whether another incarnation fits without forgetting one too early.
    pub(super) fn has_room(&self, now: Duration) -> bool {
        let earliest = self.ended_at.front().filter(|_| self.len() >= PAST_INCARNATIONS_MAX);
        earliest.is_none_or(|at| at.saturating_add(PAST_INCARNATIONS_KEPT) <= now)
    }

    pub(super) fn remove(&mut self, incarnation: Incarnation) {
        if let Some(place) = self.incarnations.iter().position(|at| *at == incarnation) {
            self.ended_at.remove(place);
            self.incarnations =
                self.incarnations.iter().filter(|at| **at != incarnation).copied().collect();
        }
    }

    pub(super) fn contains(&self, incarnation: Incarnation) -> bool {
        self.incarnations.contains(&incarnation)
    }

    pub(super) fn len(&self) -> usize {
        self.incarnations.len()
    }

    /// Whether the invariants are met: the limit, one time per incarnation, ascending times.
    pub(super) fn is_in_order(&self) -> bool {
        let is_sorted = self.ended_at.iter().is_sorted();
        self.len() <= PAST_INCARNATIONS_MAX && self.ended_at.len() == self.len() && is_sorted
    }

    pub(super) fn list(&self) -> Arc<[Incarnation]> {
        Arc::clone(&self.incarnations)
    }
}
