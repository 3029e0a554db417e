//! Pools among the registered workers: what the index has to know of them, and when a source of one is given up.

use super::{Ingest, IngestError, push_source::Command, worker::Publishers, worker::Worker};
use kvasir_proto::{
    convert::{Registration, WorkerAddress},
    types::HolderKind,
};
use std::{sync::Arc, time::Duration};

impl Ingest {
    /// Tells the index that a worker is a pool, or which ones it reads, before anything feeds it.
    pub(super) async fn set_roles(&self, worker: &Arc<Worker>) -> Result<(), IngestError> {
        let Registration { kind, pools, worker: id, .. } = &worker.registration;
        if *kind == HolderKind::Worker && pools.is_empty() {
            return Ok(());
        }
        let (kind, pools, id) = (*kind, pools.clone(), id.clone());
        let shard = worker.partition.shard_of(worker.id());
        let set = move |index: &mut kvasir_index::Index| match kind {
            HolderKind::Pool => index.set_pool(&id),
            HolderKind::Worker => index.set_reads(&id, &pools),
        };
        Ok(self.writer.change(shard, set).await?)
    }

    /// The worker is gone.
    pub(super) async fn forget_roles(&self, worker: &Worker) -> Result<(), IngestError> {
        if worker.kind() == HolderKind::Worker && worker.registration.pools.is_empty() {
            return Ok(());
        }
        let (shard, id) = (worker.partition.shard_of(worker.id()), worker.id().clone());
        Ok(self.writer.change(shard, move |index| index.forget_roles(&id)).await?)
    }

    /// Whether what a registration describes belongs to this server: a pool belongs to every shard.
    ///
    /// # Errors
    /// If its bucket belongs to another shard; the error says to which.
    pub fn check_owned(&self, registration: &Registration) -> Result<(), IngestError> {
        match registration.kind {
            HolderKind::Worker => self.check_shard(&registration.worker),
            HolderKind::Pool => Ok(()),
        }
    }

    /// The same of a worker that may be registered.
    ///
    /// # Errors
    /// As [`check_owned`](Self::check_owned).
    pub fn check_address(&self, address: &WorkerAddress) -> Result<(), IngestError> {
        if self.workers.get(address).is_some_and(|worker| worker.kind() == HolderKind::Pool) {
            return Ok(());
        }
        self.check_shard(&address.worker)
    }

    /// Gives up the sources of a pool that have been away for `--pool-source-timeout`, once another one has been connected for
    /// as long: that one has seen all that is in the store. Without such a one they stay: a pool outlives its sources.
    pub(super) fn give_up_sources(&self, worker: &Worker, publishers: &Publishers) {
        if worker.kind() == HolderKind::Worker {
            return;
        }
        let (now, timeout) = (self.origin.elapsed(), self.config.pool_source_timeout);
        let links = || publishers.by_name.values().map(|at| (at, at.shared().link()));
        let is_over = |since: Duration| now.saturating_sub(since) >= timeout;
        if !links().any(|(_, link)| link.is_connected && is_over(link.since)) {
            return;
        }
        for (publisher, link) in links() {
            if !link.is_connected && is_over(link.since) {
                publisher.try_send(Command::GiveUp);
            }
        }
    }
}
