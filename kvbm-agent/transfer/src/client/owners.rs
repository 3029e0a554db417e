use kvasir_blocks::sets::BlockSetRegistry;
use kvasir_proto::types::WorkerId;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The owners with open connections.
#[derive(Debug)]
pub(super) struct Owners {
    pub(super) registry: BlockSetRegistry,
    /// Connections and reads by owner.
    connections: Mutex<BTreeMap<WorkerId, usize>>,
}

/// Held by each connection to an owner and by each read of its memory. The drop of the last one forgets the owner's sets.
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
        // Under the lock, so that no connection imports the owner's sets meanwhile.
        self.owners.registry.disconnect(&self.owner);
        // An owner is known by its address, and another owner may take that address. Without seats no transfer is left.
        if !self.owners.registry.forget(&self.owner) {
            tracing::debug!(owner = self.owner.as_str(), "a set of this owner is still in use");
        }
    }
}
