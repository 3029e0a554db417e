//! Permits for requests to agents: limits concurrent reads, and keeps agents that do not answer from delaying others.

mod queue;

use crate::partitions::Origin;
use queue::{Ticket, TurnQueue};
use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::oneshot;

/// Permits of all requests.
#[derive(Debug)]
pub(super) struct Turns {
    state: Mutex<State>,
    origin: Origin,
}

#[derive(Debug)]
struct State {
    queue: TurnQueue,
    /// Requests that wait for a permit.
    waiting: HashMap<Ticket, oneshot::Sender<queue::Turn>>,
}

/// A permit to query one agent, released on drop.
pub(super) struct Turn {
    turns: Arc<Turns>,
    ticket: Ticket,
    /// Set while the permit is not granted.
    granted: Option<oneshot::Receiver<queue::Turn>>,
    may_read: bool,
    has_failed: bool,
}

impl Turns {
    /// Creates the permits. At most `readers_max` requests may read at a time.
    pub(super) fn new(readers_max: usize, origin: Origin) -> Self {
        let state = State { queue: TurnQueue::new(readers_max), waiting: HashMap::new() };
        Self { state: Mutex::new(state), origin }
    }

    /// Waits for a permit to send a request to an agent.
    pub(super) async fn wait(self: &Arc<Self>, agent: &Arc<str>) -> Turn {
        let turn = {
            let mut state = self.lock();
            let ticket = state.queue.wait(agent);
            let granted = Some(state.granted(ticket));
            Turn { turns: Arc::clone(self), ticket, granted, may_read: false, has_failed: false }
        };
        turn.granted().await
    }

    /// Returns a permit to query an agent and read its answer, if one is free and no other request waits for it.
    pub(super) fn try_read(self: &Arc<Self>, agent: &Arc<str>) -> Option<Turn> {
        let ticket = self.lock().queue.try_read(agent, self.origin.elapsed())?;
        let turns = Arc::clone(self);
        Some(Turn { turns, ticket, granted: None, may_read: true, has_failed: false })
    }

    /// Ends the backoff of an agent that has proven reachable.
    pub(super) fn mark_reachable(&self, agent: &Arc<str>) {
        self.lock().queue.mark_reachable(agent);
        self.advance();
    }

    /// Grants permits. Call it regularly: it is the only check for the end of a backoff.
    pub(super) fn advance(&self) {
        let mut state = self.lock();
        while let Some((ticket, turn)) = state.queue.next(self.origin.elapsed()) {
            // A request that was dropped meanwhile releases its permit.
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

    /// Records that the agent has begun to answer. Returns whether the answer may be read. If not, send the request
    /// again with a permit for reading.
    pub(super) fn answered(&mut self) -> bool {
        let mut state = self.turns.lock();
        self.may_read = state.queue.answered(self.ticket);
        self.granted = (!self.may_read).then(|| state.granted(self.ticket));
        self.may_read
    }

    /// Records that the agent does not answer.
    pub(super) const fn failed(&mut self) {
        self.has_failed = true;
    }

    /// Waits until the permit is granted.
    pub(super) async fn granted(mut self) -> Self {
        self.turns.advance();
        if let Some(granted) = self.granted.take() {
            // The sender lives until then, or until this permit is dropped.
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
            state.queue.end_request(self.ticket, self.has_failed, self.turns.origin.elapsed());
        }
        self.turns.advance();
    }
}

impl fmt::Debug for Turn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Turn({:?})", self.ticket)
    }
}
