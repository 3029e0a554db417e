//! Workers by socket: detects two workers on one socket, which would both be credited with the blocks of one engine.

use super::IngestError;
use super::subscription::{SocketKey, Subscription};
use super::worker::Worker;
use kvasir_proto::convert::{Registration, WorkerAddress};
use kvasir_proto::types::PartitionKey;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A worker that follows a socket in another worker's registration.
#[derive(Debug)]
pub(super) struct Rival {
    pub(super) worker: WorkerAddress,
    pub(super) endpoint: String,
    pub(super) topic: String,
    /// Whether the other worker may take over the socket.
    pub(super) yields: bool,
}

impl Rival {
    pub(super) fn is_of_tenant(&self, partition: &PartitionKey) -> bool {
        self.worker.partition.tenant() == partition.tenant()
    }

    /// Builds the error for a worker that requests the socket of this rival. Hides the names of workers of other
    /// tenants.
    pub(super) fn refusal(&self, registration: &Registration) -> IngestError {
        let address = registration.address();
        let other = &self.worker;
        let endpoint = self.endpoint.clone();
        let topic = self.topic.clone();
        if self.is_of_tenant(&registration.partition) {
            let other = format!("worker {other}");
            return IngestError::SocketInUse { address, endpoint, topic, other };
        }
        tracing::warn!(worker = %address, %other, endpoint, "worker refused: another tenant reads the same socket");
        let other = "another worker".to_owned();
        IngestError::SocketInUse { address, endpoint, topic: String::new(), other }
    }
}

/// Workers by socket.
#[derive(Debug, Default)]
pub(super) struct SocketIndex(Mutex<HashMap<SocketKey, Vec<Arc<Worker>>>>);

impl SocketIndex {
    fn by_key(&self) -> MutexGuard<'_, HashMap<SocketKey, Vec<Arc<Worker>>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn add(&self, worker: &Arc<Worker>) {
        let mut by_key = self.by_key();
        for key in worker.subscriptions.iter().filter_map(|at| at.key.clone()) {
            by_key.entry(key).or_default().push(Arc::clone(worker));
        }
    }

    /// Removes a worker from the entries of its sockets.
    pub(super) fn remove(&self, worker: &Arc<Worker>) {
        let mut by_key = self.by_key();
        for key in worker.subscriptions.iter().filter_map(|at| at.key.as_ref()) {
            let Some(workers) = by_key.get_mut(key) else { continue };
            workers.retain(|at| !Arc::ptr_eq(at, worker));
            if workers.is_empty() {
                by_key.remove(key);
            }
        }
    }

    /// Returns the other workers with an overlapping subscription, one entry for each socket.
    pub(super) fn rivals(
        &self,
        worker: &WorkerAddress,
        subscriptions: &[Subscription],
    ) -> Vec<Rival> {
        let by_key = self.by_key();
        let mut rivals = Vec::new();
        for wanted in subscriptions {
            let workers = wanted.key.as_ref().and_then(|key| by_key.get(key));
            for other in workers.into_iter().flatten().filter(|at| at.address() != *worker) {
                let followed = other.subscriptions.iter().filter(|at| at.overlaps(wanted));
                rivals.extend(followed.map(|at| Rival {
                    worker: other.address(),
                    endpoint: at.endpoint.clone(),
                    topic: at.topic.clone(),
                    yields: at.presence.load().yields(),
                }));
            }
        }
        rivals
    }
}
