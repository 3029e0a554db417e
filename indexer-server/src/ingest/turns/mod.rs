//! Turns for requests to agents. Few answers are read at a time, and agents that do not answer delay no
//! others.

mod queue;

use crate::partitions::Origin;
use queue::{Ticket, TurnQueue};
use std::{
    collections::HashMap,
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};
use tokio::sync::oneshot;

/// The turns of all requests.
#[derive(Debug)]
pub(super) struct Turns {
    state: Mutex<State>,
    origin: Origin,
}

#[derive(Debug)]
struct State {
    queue: TurnQueue,
    /// Requests that wait for a turn.
    waiting: HashMap<Ticket, oneshot::Sender<queue::Turn>>,
}

/// A turn to ask one agent; it is over when it is dropped.
pub(super) struct Turn {
    turns: Arc<Turns>,
    ticket: Ticket,
    /// Set while the turn is not granted.
    granted: Option<oneshot::Receiver<queue::Turn>>,
    may_read: bool,
    has_failed: bool,
}

impl Turns {
    /// Turns of which at most `readers_max` may read at a time.
    pub(super) fn new(readers_max: usize, origin: Origin) -> Self {
        let state = State { queue: TurnQueue::new(readers_max), waiting: HashMap::new() };
        Self { state: Mutex::new(state), origin }
    }

    /// Waits for a turn to ask an agent.
    pub(super) async fn wait(self: &Arc<Self>, agent: &Arc<str>) -> Turn {
        let turn = {
            let mut state = self.lock();
            let ticket = state.queue.wait(agent);
            let granted = Some(state.granted(ticket));
            Turn { turns: Arc::clone(self), ticket, granted, may_read: false, has_failed: false }
        };
        turn.granted().await
    }

    /// A turn to ask an agent and to read its answer, if one is free and no request waits for it.
    pub(super) fn try_read(self: &Arc<Self>, agent: &Arc<str>) -> Option<Turn> {
        let ticket = self.lock().queue.try_read(agent, self.origin.elapsed())?;
        let turns = Arc::clone(self);
        Some(Turn { turns, ticket, granted: None, may_read: true, has_failed: false })
    }

    /// The agent has shown that it is reachable: its back-off ends.
    pub(super) fn mark_reachable(&self, agent: &Arc<str>) {
        self.lock().queue.mark_reachable(agent);
        self.advance();
    }

    /// Grants turns. Call it regularly: nothing else notices the end of a back-off.
    pub(super) fn advance(&self) {
        let mut state = self.lock();
        while let Some((ticket, turn)) = state.queue.next(self.origin.elapsed()) {
            // A request that was dropped meanwhile gives its turn back.
            let _gone = state.waiting.remove(&ticket).map(|waiting| waiting.send(turn));
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn granted(&mut self, ticket: Ticket) -> oneshot::Receiver<queue::Turn> {
        let (sender, granted) = oneshot::channel();
        self.waiting.insert(ticket, sender);
        granted
    }
}

impl Turn {
    /// Whether the answer may be read beyond its first part.
    pub(super) const fn may_read(&self) -> bool {
        self.may_read
    }

    /// The agent has begun to answer. Returns whether the answer may be read; if not, ask again in a turn
    /// for reading.
    pub(super) fn answered(&mut self) -> bool {
        let mut state = self.turns.lock();
        self.may_read = state.queue.answered(self.ticket);
        self.granted = (!self.may_read).then(|| state.granted(self.ticket));
        self.may_read
    }

    /// The agent does not answer.
    pub(super) const fn failed(&mut self) {
        self.has_failed = true;
    }

    /// Waits until it is granted.
    pub(super) async fn granted(mut self) -> Self {
        self.turns.advance();
        if let Some(granted) = self.granted.take() {
            // The sender stays until then, or until this is dropped.
            self.may_read = matches!(granted.await, Ok(queue::Turn::Read));
        }
        self
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        {
            let mut state = self.turns.lock();
            state.waiting.remove(&self.ticket);
            state.queue.end(self.ticket, self.has_failed, self.turns.origin.elapsed());
        }
        self.turns.advance();
    }
}

impl fmt::Debug for Turn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Turn({:?})", self.ticket)
    }
}
