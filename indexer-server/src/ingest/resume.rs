//! Workers that a checkpoint or a sibling brings: they are known at once, and fed once their blocks are in
//! the index.

use super::{Ingest, IngestError, link::LinkPlan, worker::Worker};
use crate::index::{IndexedSource, Partition};
use kvasir_index::SourceStatus;
use kvasir_proto::{convert::Registration, types::CopyMode};
use std::sync::Arc;
use tokio_util::sync::CancellationToken;

/// A source that a checkpoint or a sibling brought into the index.
#[derive(Debug, Clone)]
pub struct Resumed {
    /// Its name.
    pub name: String,
    /// How second announcements are read.
    pub copy_mode: CopyMode,
    /// The source.
    pub source: IndexedSource,
    /// Where it stood.
    pub status: SourceStatus,
}

/// A worker that is registered and not fed: what a checkpoint or a sibling has of it is on its way. Give it to
/// [`Ingest::resume`], also if nothing could be brought back.
#[derive(Debug)]
pub struct Expected {
    worker: Arc<Worker>,
    plans: Vec<LinkPlan>,
}

impl Ingest {
    /// Registers a worker that is to be fed only once [`Ingest::resume`] says that its blocks are
    /// back. None if it is registered already.
    ///
    /// # Errors
    /// If it contradicts its partition, names an unusable endpoint, or a limit is reached.
    pub async fn expect(
        &self,
        registration: Registration,
    ) -> Result<Option<Expected>, IngestError> {
        let _control = self.control.lock().await;
        let address = registration.address();
        if self.workers.contains_key(&address) {
            return Ok(None);
        }
        let (worker, plans) = self.admit(registration)?;
        worker.heard(self.origin);
        worker.partition.restoring().begin(worker.id().clone());
        self.workers.insert(address, Arc::clone(&worker));
        self.count_workers();
        Ok(Some(Expected { worker, plans }))
    }

    /// Lets events in for a worker. `bring` puts its blocks into the index and returns its sources;
    /// it is not called if the worker was removed meanwhile, and given a token that is cancelled if it is
    /// about to be removed: whoever removes it waits. A source that the worker has no endpoint
    /// for and that says nothing of a life is dropped.
    ///
    /// # Errors
    /// If the index refuses a source, or the server is stopping.
    pub async fn resume(
        self: &Arc<Self>,
        expected: Expected,
        bring: impl AsyncFnOnce(&Arc<Partition>, &CancellationToken) -> Vec<Resumed>,
    ) -> Result<(), IngestError> {
        let Expected { worker, plans } = expected;
        // Whoever removes the worker waits for this.
        let mut links = worker.links.lock().await;
        if worker.is_removed() {
            return Ok(());
        }
        let resumed = bring(&worker.partition, &worker.cancel).await;
        let others = self.attach(&worker, &mut links, plans, resumed).await?;
        for resumed in others {
            if !self.resume_publisher(&worker, &resumed).await {
                self.writer.remove_source(resumed.source).await?;
            }
        }
        worker.heard(self.origin);
        worker.open();
        Ok(())
    }

    /// Registrations of the workers of which the index has all that a checkpoint knows, and of those
    /// that are still expected.
    #[must_use]
    pub fn restored(&self) -> (Vec<Registration>, Vec<Registration>) {
        let entries = self.workers.iter().map(|entry| Arc::clone(&entry));
        let (restored, expected): (Vec<_>, Vec<_>) = entries.partition(|worker| worker.is_open());
        let registrations = |workers: Vec<Arc<Worker>>| {
            workers.iter().map(|worker| worker.registration.clone()).collect()
        };
        (registrations(restored), registrations(expected))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        index::{
            IndexConfig, IndexMetrics, Origin, Partitions, Speculation, SpeculationConfig,
            SpeculationMetrics, start_writers,
        },
        ingest::{IngestConfig, IngestMetrics},
    };
    use kvasir_proto::{convert::LossPolicy, pb};
    use prometheus_client::registry::Registry;
    use std::{num::NonZeroUsize, time::Duration};

    fn ingest() -> Arc<Ingest> {
        let config = IndexConfig { shards: NonZeroUsize::MIN, bytes_max: None };
        let partitions = Arc::new(Partitions::new(config, kvasir_index::Limits::default()));
        let mut registry = Registry::default();
        let metrics = IndexMetrics::register(&mut registry, Arc::clone(&partitions));
        let (writer, _threads) = start_writers(&partitions, &metrics).expect("a thread");
        let placed = SpeculationMetrics::register(&mut registry, Arc::clone(&partitions));
        let few = SpeculationConfig { blocks_max: 1, blocks_kept: 1 };
        let speculation = Speculation::new(Arc::clone(&partitions), few, placed);
        let config = IngestConfig {
            loss_policy: LossPolicy::Keep,
            degraded_ttl: Duration::from_secs(1),
            worker_timeout: Duration::from_secs(1),
            probe_interval: Duration::from_secs(1),
            replay_concurrency: 1,
            dump_concurrency: 1,
            shard: None,
        };
        let metrics = IngestMetrics::register(&mut registry, metrics);
        let speculation = Arc::new(speculation);
        Arc::new(Ingest::new(config, partitions, writer, speculation, Origin::now(), metrics))
    }

    fn registration(worker: &str) -> Registration {
        let request = pb::RegisterWorkerRequest {
            worker_id: worker.to_owned(),
            model: "m".to_owned(),
            block_size: 16,
            ..Default::default()
        };
        request.try_into().expect("a valid registration")
    }

    #[tokio::test]
    async fn who_is_not_back_is_named_until_it_is_or_goes() {
        let ingest = ingest();
        let mut expected = Vec::new();
        for worker in ["a", "b"] {
            let registered = ingest.expect(registration(worker)).await.expect("a valid worker");
            expected.extend(registered);
        }
        let partition = Arc::clone(&expected[0].worker.partition);
        let named = || -> Vec<String> {
            partition.restoring().among(None).iter().map(ToString::to_string).collect()
        };
        assert_eq!(named(), ["a", "b"]);
        ingest.resume(expected.remove(0), async |_, _| Vec::new()).await.expect("nothing refused");
        assert_eq!(named(), ["b"]);
        ingest.remove(registration("b").address()).await.expect("a known worker");
        assert_eq!(named(), Vec::<String>::new());
        ingest.stop().await;
    }
}
