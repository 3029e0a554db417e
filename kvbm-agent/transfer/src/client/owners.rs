use kvasir_blocks::sets::BlockSetRegistry;
use kvasir_proto::types::WorkerId;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Owners to whom there is a connection, with their number.
#[derive(Debug)]
pub(super) struct Owners {
    pub(super) registry: BlockSetRegistry,
    connections: Mutex<BTreeMap<WorkerId, usize>>,
}

/// A connection to an owner, or a read of its memory. With the last one the owner's sets end.
#[derive(Debug)]
pub(super) struct OwnerSeat {
    owners: Arc<Owners>,
    owner: WorkerId,
}

impl Owners {
    pub(super) fn new(registry: BlockSetRegistry) -> Arc<Self> {
        Arc::new(Self { registry, connections: Mutex::default() })
    }

    pub(super) fn connect(self: &Arc<Self>, owner: WorkerId) -> OwnerSeat {
        *self.connections.lock().entry(owner.clone()).or_default() += 1;
        OwnerSeat { owners: Arc::clone(self), owner }
    }
}

impl OwnerSeat {
    pub(super) const fn owner(&self) -> &WorkerId {
        &self.owner
    }
}

impl Drop for OwnerSeat {
    fn drop(&mut self) {
        let mut connections = self.owners.connections.lock();
        let Some(count) = connections.get_mut(&self.owner) else { return };
        *count -= 1;
        if *count > 0 {
            return;
        }
        connections.remove(&self.owner);
        // Still locked, so that nobody imports the owner's sets again in between.
        self.owners.registry.disconnect(&self.owner);
        // Who it is, is its address: whoever is there next begins anew. Its sets have no transfer without a seat.
        if !self.owners.registry.forget(&self.owner) {
            tracing::debug!(owner = self.owner.as_str(), "a set is in use still");
        }
    }
}
