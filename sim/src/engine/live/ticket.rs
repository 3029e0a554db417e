//! The caller's view of a request.

use super::actor::Command;
use super::request::Progress;
use std::fmt;
use tokio::sync::{mpsc, watch};

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

    /// Waits until more than `out` tokens are sent or the request has ended. `None` if the engine has stopped.
    pub async fn further(&mut self, out: usize) -> Option<Progress> {
        let is_further = |progress: &Progress| progress.out > out || progress.is_done;
        let progress = self.progress.wait_for(is_further).await;
        progress.ok().map(|progress| progress.clone())
    }

    /// Waits for the end. `None` if the engine has stopped.
    pub async fn done(&mut self) -> Option<Progress> {
        self.further(usize::MAX).await
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let is_done = self.progress.borrow().is_done;
        // If the queue is full, the engine detects at its next step that the caller is gone.
        if let Some(commands) = self.commands.upgrade().filter(|_| !is_done) {
            let _full_or_gone = commands.try_send(Command::Cancel(self.id));
        }
    }
}
