use super::answer::Charge;
use super::peer::Peer;
use super::share::Limit;
use std::sync::Arc;

/// Limits on the bytes of publishers' unanswered batches, at the port and at one connection.
#[derive(Debug, Clone)]
pub(crate) struct BatchRoom {
    port: Limit,
    peer: Arc<Peer>,
}

impl BatchRoom {
    pub(crate) const fn new(port: Limit, peer: Arc<Peer>) -> Self {
        Self { port, peer }
    }

    /// Reserves room for a batch of `bytes` bytes until the result is dropped. `None` if the room is insufficient now.
    pub(crate) fn reserve_batch(&self, bytes: usize) -> Option<Charge> {
        Charge::reserve_bytes(&self.port, &self.peer.batch_bytes, bytes).ok()
    }
}
