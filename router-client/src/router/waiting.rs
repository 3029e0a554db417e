//! Requests that wait for a rank with room: tasks around the pure queue.

use super::config::Filter;
use super::state::Shared;
use crate::route::{Queue, QueueFull, Ticket, Wait};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;

/// What the queue has of a request that waits.
#[derive(Debug)]
pub(super) struct Waiter {
    pub(super) filter: Filter,
    pub(super) release: oneshot::Sender<Duration>,
}

/// What waiting cost a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Queued {
    /// How many of its lane were ahead of it when it came.
    pub position: usize,
    /// How long it waited.
    pub waited: Duration,
}

/// A place in the queue. Dropping it gives the place up, and wakes whoever comes next.
#[derive(Debug)]
pub(super) struct Place {
    shared: Arc<Shared>,
    ticket: Ticket,
    position: usize,
    released: oneshot::Receiver<Duration>,
}

impl Place {
    /// Takes a place.
    pub(super) fn take(
        shared: &Arc<Shared>,
        queue: &mut Queue<Waiter>,
        filter: &Filter,
        (wait, now): (Wait, Duration),
    ) -> Result<Self, QueueFull<()>> {
        let (release, released) = oneshot::channel();
        let waiter = Waiter { filter: filter.clone(), release };
        let ticket = queue.push(wait, waiter, now).map_err(|_full| QueueFull(()))?;
        let position = queue.position(ticket).unwrap_or(0);
        Ok(Self { shared: Arc::clone(shared), ticket, position, released })
    }

    /// Waits until a rank has room.
    pub(super) async fn released(&mut self) -> Queued {
        // The queue never drops a waiter without releasing it.
        let waited = (&mut self.released).await.unwrap_or_default();
        Queued { position: self.position, waited }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let now = self.shared.now();
        let mut state = self.shared.state();
        let _left = state.queue().cancel(self.ticket, now);
        // If it was released, its room may still be there.
        state.release_next(now);
    }
}
