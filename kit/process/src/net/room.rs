use super::{answer::Charge, peer::Peer, share::Limit};
use std::sync::Arc;

/// Room for batches of publishers that wait for their answers, at the port and at one connection.
#[derive(Debug, Clone)]
pub(crate) struct BatchRoom {
    port: Limit,
    peer: Arc<Peer>,
}

impl BatchRoom {
    pub(crate) const fn new(port: Limit, peer: Arc<Peer>) -> Self {
        Self { port, peer }
    }

    /// Takes room for a batch of so many bytes, until the result is dropped; none if there is not enough now.
    pub(crate) fn take(&self, bytes: usize) -> Option<Charge> {
        Charge::take(&self.port, &self.peer.batch_bytes, bytes).ok()
    }
}
