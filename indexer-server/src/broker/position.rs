//! Tracks the position of the broker's stream in the index.

use crate::ingest::PendingAnswer;
use crate::snapshot::StreamPosition;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

/// Maximum number of unanswered messages. Beyond it the oldest counts as answered. After a crash its source would miss
/// the message, detect the gap in the numbers, and query its agent.
const UNANSWERED_MAX: usize = 1 << 16;

/// Position of a server in the stream. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct Position(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    reached: Option<StreamPosition>,
    frozen: bool,
    /// Submitted messages, in order, that the index may not have yet.
    unanswered: VecDeque<(u64, PendingAnswer)>,
}

impl Position {
    /// The last message for which the index includes it and all earlier messages.
    #[must_use]
    pub fn reached(&self) -> Option<StreamPosition> {
        self.with(|state| {
            state.advance();
            state.reached
        })
    }

    /// Sets the position: the position of a checkpoint, or the start of another stream.
    pub fn begin(&self, reached: StreamPosition) {
        self.with(|state| *state = State { reached: Some(reached), ..State::default() });
    }

    /// Freezes the position: during shutdown, batches are answered that are not in the index.
    pub(super) fn freeze(&self) {
        self.with(|state| {
            state.advance();
            state.frozen = true;
        });
    }

    /// Records that the message `sequence` was submitted. Without an `answer` the message is complete as soon as its
    /// predecessors are.
    pub(super) fn record_message(&self, sequence: u64, answer: Option<PendingAnswer>) {
        self.with(|state| {
            state.advance();
            match answer {
                Some(answer) => state.unanswered.push_back((sequence, answer)),
                None if state.unanswered.is_empty() => state.advance_to(sequence),
                // The message completes together with its predecessor.
                None => {
                    if let Some((last, _)) = state.unanswered.back_mut() {
                        *last = sequence;
                    }
                }
            }
            if state.unanswered.len() > UNANSWERED_MAX
                && let Some((sequence, _)) = state.unanswered.pop_front()
            {
                state.advance_to(sequence);
            }
            debug_assert!(state.unanswered.len() <= UNANSWERED_MAX);
        });
    }

    fn with<T>(&self, work: impl FnOnce(&mut State) -> T) -> T {
        work(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl State {
    /// Moves the position over the leading messages whose answers have arrived. Does nothing once the position is
    /// frozen.
    fn advance(&mut self) {
        while let Some((sequence, answer)) = self.unanswered.front_mut() {
            if self.frozen || !answer.is_there() {
                return;
            }
            let sequence = *sequence;
            self.unanswered.pop_front();
            self.advance_to(sequence);
        }
    }

    fn advance_to(&mut self, sequence: u64) {
        if let Some(reached) = &mut self.reached {
            reached.sequence = reached.sequence.max(sequence);
        }
    }
}
