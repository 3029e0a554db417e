//! Turns to ask agents: few answers are read at a time, and agents that do not answer keep nobody waiting.

mod queue;

use crate::partitions::Origin;
use queue::{Ticket, TurnQueue};
use std::{
    collections::HashMap,
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};
use tokio::sync::oneshot;

/// Who asks agents, one after the other.
#[derive(Debug)]
pub(super) struct Turns {
    state: Mutex<State>,
    origin: Origin,
}

#[derive(Debug)]
struct State {
    queue: TurnQueue,
    /// Who waits for a turn.
    waiting: HashMap<Ticket, oneshot::Sender<queue::Turn>>,
}

/// A turn to ask one agent; it is over when it is dropped.
pub(super) struct Turn {
    turns: Arc<Turns>,
    ticket: Ticket,
    /// Until it is granted.
    granted: Option<oneshot::Receiver<queue::Turn>>,
    may_read: bool,
    has_failed: bool,
}

impl Turns {
    /// At most so many answers are read at a time.
    pub(super) fn new(readings_max: usize, origin: Origin) -> Self {
        let state = State { queue: TurnQueue::new(readings_max), waiting: HashMap::new() };
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

    /// A turn to ask an agent and to read its answer, if there is one that nobody waits for.
    pub(super) fn try_read(self: &Arc<Self>, agent: &Arc<str>) -> Option<Turn> {
        let ticket = self.lock().queue.try_read(agent, self.origin.elapsed())?;
        let turns = Arc::clone(self);
        Some(Turn { turns, ticket, granted: None, may_read: true, has_failed: false })
    }

    /// An agent was heard: whatever it did not answer before, it may now.
    pub(super) fn heard(&self, agent: &Arc<str>) {
        self.lock().queue.heard(agent);
        self.advance();
    }

    /// Gives out turns. To be called now and then: agents that did not answer rest for a while, and
    /// nothing tells when that is over.
    pub(super) fn advance(&self) {
        let mut state = self.lock();
        while let Some((ticket, turn)) = state.queue.next(self.origin.elapsed()) {
            // Who is gone gives its turn back when it is dropped.
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

    /// The agent has begun to answer. Whether the answer may be read; if not, others are being read, and the
    /// agent is to be asked again in a turn for that.
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
            // Its sender is kept until then, or until this is dropped.
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
