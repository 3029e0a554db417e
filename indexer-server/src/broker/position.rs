//! How far of the stream is in the index.

use crate::{ingest::PendingAnswer, snapshot::StreamPosition};
use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, PoisonError},
};

/// Messages that may be unanswered. With more, the oldest is not waited for: were the process killed then, its
/// source would lack it afterwards, see so by the numbers, and be asked.
const UNANSWERED_MAX: usize = 1 << 16;

/// The place that a server has reached. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct Position(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    reached: Option<StreamPosition>,
    frozen: bool,
    /// Messages handed on, in order, that the index may not have yet.
    unanswered: VecDeque<(u64, PendingAnswer)>,
}

impl Position {
    /// What the index has now.
    #[must_use]
    pub fn reached(&self) -> Option<StreamPosition> {
        self.with(|state| {
            state.settle();
            state.reached
        })
    }

    /// The index has what was said up to there: a checkpoint says so, or another stream begins.
    pub fn begin(&self, reached: StreamPosition) {
        self.with(|state| *state = State { reached: Some(reached), ..State::default() });
    }

    /// Nothing counts any more: sources are about to released what they hold back, which answers it.
    pub(super) fn freeze(&self) {
        self.with(|state| {
            state.settle();
            state.frozen = true;
        });
    }

    /// The next message was handed on; without an answer there is nothing to wait for.
    pub(super) fn took(&self, sequence: u64, answer: Option<PendingAnswer>) {
        self.with(|state| {
            state.settle();
            match answer {
                Some(answer) => state.unanswered.push_back((sequence, answer)),
                None if state.unanswered.is_empty() => state.reach(sequence),
                // It counts with the one before it.
                None => {
                    if let Some((last, _)) = state.unanswered.back_mut() {
                        *last = sequence;
                    }
                }
            }
            if state.unanswered.len() > UNANSWERED_MAX
                && let Some((sequence, _)) = state.unanswered.pop_front()
            {
                state.reach(sequence);
            }
        });
    }

    fn with<T>(&self, work: impl FnOnce(&mut State) -> T) -> T {
        work(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl State {
    fn settle(&mut self) {
        while let Some((sequence, answer)) = self.unanswered.front_mut() {
            if self.frozen || !answer.is_there() {
                return;
            }
            let sequence = *sequence;
            self.unanswered.pop_front();
            self.reach(sequence);
        }
    }

    fn reach(&mut self, sequence: u64) {
        if let Some(reached) = &mut self.reached {
            reached.sequence = reached.sequence.max(sequence);
        }
    }
}
