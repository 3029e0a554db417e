//! A storage whose calls a test can block or let fail, by kind of call.

use crate::world::until;
use kvasir_tiers::faults::{Call, Hook, HookedStorage};
use kvasir_tiers::{Cancel, Place, Storage, TransferError};
use parking_lot::{Condvar, Mutex};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

#[derive(Debug, Default)]
struct Door {
    shut: BTreeSet<Call>,
    failing: BTreeMap<Call, TransferError>,
    calls: BTreeMap<Call, u64>,
}

/// The gate before the storage. Calls at a closed gate hang, even if they are cancelled.
#[derive(Debug, Clone, Default)]
pub(crate) struct Gate(Arc<(Mutex<Door>, Condvar)>);

impl Gate {
    pub(crate) fn before(&self, storage: Arc<dyn Storage>) -> Arc<dyn Storage> {
        Arc::new(HookedStorage::hooked(storage, self.clone()))
    }

    pub(crate) fn shut(&self, call: Call) {
        self.0.0.lock().shut.insert(call);
    }

    pub(crate) fn open(&self) {
        self.0.0.lock().shut.clear();
        self.0.1.notify_all();
    }

    /// Lets calls of this kind fail from now on.
    pub(crate) fn fail(&self, call: Call) {
        self.0.0.lock().failing.insert(call, TransferError::Io("a test".to_owned()));
    }

    pub(crate) fn heal(&self) {
        self.0.0.lock().failing.clear();
    }

    pub(crate) fn calls(&self, call: Call) -> u64 {
        self.0.0.lock().calls.get(&call).copied().unwrap_or_default()
    }

    /// Waits until `count` calls of this kind have arrived.
    pub(crate) async fn reached(&self, call: Call, count: u64) {
        until("calls at the gate", || self.calls(call) >= count).await;
    }
}

impl Hook for Gate {
    fn before(&self, call: Call, _: Place, cancel: &Cancel) -> Result<Cancel, TransferError> {
        let (door, changed) = &*self.0;
        let mut door = door.lock();
        *door.calls.entry(call).or_default() += 1;
        // A blocked call continues when the gate opens, and completes although it was cancelled.
        let hangs = door.shut.contains(&call);
        while door.shut.contains(&call) {
            changed.wait(&mut door);
        }
        let cancel = if hangs { Cancel::new() } else { cancel.clone() };
        door.failing.get(&call).cloned().map_or(Ok(cancel), Err)
    }
}
