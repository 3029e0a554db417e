use crate::identity::{BlockIdentity, Priority};
use crate::lifecycle::{RegisteredBlock, WeakBlock};
use crate::tier::TierMarker;
use kvasir_proto::types::SequenceHash;
use rustc_hash::FxHashMap;
use std::cmp::Reverse;
use std::collections::BTreeMap;

/// A reference to the block to copy.
#[derive(Debug)]
pub(super) enum Source<S> {
    /// A weak handle: the block may be evicted while queued.
    Weak(WeakBlock<S>),
    /// A strong handle: the block is kept while queued.
    Held(RegisteredBlock<S>),
}

impl<S: TierMarker> Source<S> {
    pub(super) const fn identity(&self) -> &BlockIdentity {
        match self {
            Self::Weak(block) => block.identity(),
            Self::Held(block) => block.identity(),
        }
    }

    pub(super) fn upgrade(&self) -> Option<RegisteredBlock<S>> {
        match self {
            Self::Weak(block) => block.upgrade(),
            Self::Held(block) => block.is_registered().then(|| block.clone()),
        }
    }
}

/// A block that is queued for its transfer.
#[derive(Debug)]
pub(super) struct Candidate<S> {
    pub(super) source: Source<S>,
    pub(super) priority: Priority,
}

/// Queue order: higher priority first, then first in, first out.
type Turn = (Reverse<Priority>, u64);

/// Priority queue of candidates, at most one per hash.
#[derive(Debug)]
pub(super) struct Queue<S> {
    by_turn: BTreeMap<Turn, Candidate<S>>,
    turns: FxHashMap<SequenceHash, Turn>,
    last_number: u64,
    blocks_max: usize,
}

impl<S: TierMarker> Queue<S> {
    pub(super) fn new(blocks_max: usize) -> Self {
        Self { by_turn: BTreeMap::new(), turns: FxHashMap::default(), last_number: 0, blocks_max }
    }

    pub(super) fn len(&self) -> usize {
        self.by_turn.len()
    }

    pub(super) fn contains(&self, sequence: SequenceHash) -> bool {
        self.turns.contains_key(&sequence)
    }

    /// Adds a candidate whose hash is not queued. If the queue is full, the candidate replaces and returns the last one
    /// of a lower priority. If there is none, the candidate itself is returned as the error.
    pub(super) fn push(
        &mut self,
        candidate: Candidate<S>,
    ) -> Result<Option<Candidate<S>>, Candidate<S>> {
        let mut displaced = None;
        if self.by_turn.len() >= self.blocks_max {
            let lower =
                self.by_turn.last_entry().filter(|last| last.key().0.0 < candidate.priority);
            let Some(lower) = lower else { return Err(candidate) };
            let lower = lower.remove();
            self.turns.remove(&lower.source.identity().sequence);
            displaced = Some(lower);
        }
        self.last_number += 1;
        self.put_back((Reverse(candidate.priority), self.last_number), candidate);
        Ok(displaced)
    }

    /// Removes the first candidate.
    pub(super) fn pop(&mut self) -> Option<(Turn, Candidate<S>)> {
        let (turn, candidate) = self.by_turn.pop_first()?;
        self.turns.remove(&candidate.source.identity().sequence);
        Some((turn, candidate))
    }

    /// Puts back a candidate that was just removed.
    pub(super) fn put_back(&mut self, turn: Turn, candidate: Candidate<S>) {
        self.turns.insert(candidate.source.identity().sequence, turn);
        self.by_turn.insert(turn, candidate);
    }

    /// Removes the candidate with this hash.
    pub(super) fn remove(&mut self, sequence: SequenceHash) -> Option<Candidate<S>> {
        self.by_turn.remove(&self.turns.remove(&sequence)?)
    }
}
