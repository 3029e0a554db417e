use kvasir_blocks::sets::BlockSetRegistry;
use kvasir_proto::types::WorkerId;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The owners with open connections.
#[derive(Debug)]
pub(super) struct Owners {
    pub(super) registry: BlockSetRegistry,
    /// Number of connections and reads, by owner.
    connections: Mutex<BTreeMap<WorkerId, usize>>,
}

/// Reference to an owner, held by each connection to it and each read of its memory. Dropping the last one removes the
/// owner's sets.
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
    /// Counts one connection to the owner less. After the last one, ends the owner's sets.
    fn drop(&mut self) {
        let mut connections = self.owners.connections.lock();
        let Some(count) = connections.get_mut(&self.owner) else { return };
        *count -= 1;
        if *count > 0 {
            return;
        }
        connections.remove(&self.owner);
        // Under the lock, so that no connection imports the owner's sets concurrently.
        self.owners.registry.disconnect(&self.owner);
        // Owners are identified by address, and another owner may take the address later. Without seats, no transfer is
        // running.
        if !self.owners.registry.forget(&self.owner) {
            tracing::debug!(owner = self.owner.as_str(), "a set of this owner is still in use");
        }
    }
}
