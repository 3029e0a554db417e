//! A request as its caller sees it.

use super::actor::Command;
use crate::engine::pool::BlockId;
use std::fmt;
use tokio::sync::{mpsc, watch};

/// A request for an engine.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Submission {
    /// Tokens of the prompt, at least one.
    pub prompt: Vec<u32>,
    /// Tokens of the answer that the model will give, at least one.
    pub answer: Vec<u32>,
    /// Whether the answer is shorter than the model's because the caller limits it.
    pub is_cut: bool,
    /// Whether another engine has computed the prompt, so that its keys and values come from there.
    pub is_remote: bool,
    /// Whether its blocks stay in use after its end, for another engine to fetch.
    pub is_held: bool,
}

/// How far a request is.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Progress {
    /// Tokens of the answer that are out.
    pub out: usize,
    /// Whether it has ended.
    pub is_done: bool,
    /// Once it has ended: tokens of its prompt that were not computed here, because they were cached or came from another
    /// engine.
    pub cached_tokens: usize,
    /// Once it has ended: the blocks that are held for another engine.
    pub held: Vec<BlockId>,
}

/// A request in an engine. Dropping it before its end cancels it.
pub struct Ticket {
    pub(super) id: usize,
    pub(super) progress: watch::Receiver<Progress>,
    pub(super) commands: mpsc::WeakSender<Command>,
}

impl fmt::Debug for Ticket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ticket").field("id", &self.id).finish_non_exhaustive()
    }
}

impl Ticket {
    /// Number of the request in its engine.
    #[must_use]
    pub const fn id(&self) -> usize {
        self.id
    }

    /// Waits until more than `out` tokens are out or the request has ended. `None` if the engine is gone.
    pub async fn further(&mut self, out: usize) -> Option<Progress> {
        let is_further = |progress: &Progress| progress.out > out || progress.is_done;
        let progress = self.progress.wait_for(is_further).await;
        progress.ok().map(|progress| progress.clone())
    }

    /// Waits for the end. `None` if the engine is gone.
    pub async fn done(&mut self) -> Option<Progress> {
        self.further(usize::MAX).await
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let is_done = self.progress.borrow().is_done;
        // If the queue is full, the engine sees at its next step that nobody waits.
        if let Some(commands) = self.commands.upgrade().filter(|_| !is_done) {
            let _full_or_gone = commands.try_send(Command::Cancel(self.id));
        }
    }
}
