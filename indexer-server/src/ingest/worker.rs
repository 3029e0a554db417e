use super::IngestError;
use super::push_source::PushSource;
use super::subscription::Subscription;
use crate::partitions::{IndexedSource, Origin, Partition, RegisteredBy};
use crossbeam_utils::atomic::AtomicCell;
use kvasir_process::shares::TakenShare;
use kvasir_proto::convert::{Registration, WorkerAddress};
use kvasir_proto::types::{HolderKind, PartitionKey, WorkerId};
use std::collections::BTreeMap;
use std::mem;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;
use tokio::select;
use tokio::sync::{Mutex, SetOnce};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// One registered worker.
#[derive(Debug)]
pub(super) struct Worker {
    pub(super) registration: Registration,
    pub(super) partition: Arc<Partition>,
    /// Ends the tasks of the worker's endpoints.
    pub(super) cancel: CancellationToken,
    pub(super) links: Mutex<Links>,
    pub(super) publishers: Mutex<Publishers>,
    /// Subscriptions of the worker's endpoints.
    pub(super) subscriptions: Vec<Subscription>,
    registered_by: AtomicCell<RegisteredBy>,
    /// Names of the worker's sources while its blocks are being restored.
    awaited_sources: Vec<String>,
    /// Last renewal of the lease, in milliseconds since the origin.
    alive_at_ms: AtomicU64,
    /// Whether the worker replaced a worker of the same name.
    is_replacement: AtomicBool,
    /// Number of open streams of the worker's agent.
    streams: AtomicUsize,
    /// Whether the agent ever had a stream.
    had_stream: AtomicBool,
    /// Set once the worker's blocks are restored. The worker receives no events before.
    pub(super) restored: SetOnce<()>,
}

/// A worker's share of the limits on workers, sockets and bytes.
pub(super) type Room = [TakenShare; 3];

/// Tasks and sources of a worker's endpoints.
#[derive(Debug, Default)]
pub(super) struct Links {
    pub(super) tasks: JoinSet<()>,
    pub(super) sources: Vec<IndexedSource>,
    /// Share of the limits on workers, sockets and registration bytes, released on drop.
    _room: Option<Room>,
}

/// Publishers of a worker, by source name.
#[derive(Debug, Default)]
pub(super) struct Publishers {
    /// The worker was removed: new streams are refused.
    pub(super) closed: bool,
    pub(super) by_name: BTreeMap<String, Arc<PushSource>>,
    pub(super) tasks: JoinSet<()>,
}

impl Worker {
    /// Creates a registered worker without links.
    pub(super) fn new(
        registration: Registration,
        registered_by: RegisteredBy,
        partition: Arc<Partition>,
        cancel: CancellationToken,
        room: Room,
    ) -> Self {
        Self {
            registration,
            partition,
            cancel,
            links: Mutex::new(Links { _room: Some(room), ..Links::default() }),
            publishers: Mutex::default(),
            subscriptions: Vec::new(),
            registered_by: AtomicCell::new(registered_by),
            awaited_sources: Vec::new(),
            alive_at_ms: AtomicU64::new(0),
            is_replacement: AtomicBool::new(false),
            streams: AtomicUsize::new(0),
            had_stream: AtomicBool::new(false),
            restored: SetOnce::new(),
        }
    }

    /// Sets the known sources of a worker whose blocks are being restored.
    pub(super) fn awaiting(self, sources: Vec<String>) -> Self {
        Self { awaited_sources: sources, ..self }
    }

    /// Sets the subscriptions of the worker's endpoints.
    pub(super) fn subscribed(self, subscriptions: Vec<Subscription>) -> Self {
        Self { subscriptions, ..self }
    }

    /// The known sources while they may not be in the index yet. Empty once the worker is open.
    pub(super) fn awaited_sources(&self) -> &[String] {
        if self.is_open() { &[] } else { &self.awaited_sources }
    }

    /// Who registered the worker.
    pub(super) fn registered_by(&self) -> RegisteredBy {
        self.registered_by.load()
    }

    /// Records who repeated the registration. A request takes precedence over the configuration, and confirms that the
    /// engine is still at its sockets.
    pub(super) fn merge_registered_by(&self, by: RegisteredBy) {
        match by {
            RegisteredBy::Request => {
                self.subscriptions.iter().for_each(Subscription::renew);
                self.registered_by.store(by);
            }
            RegisteredBy::Configuration => {
                // Fails for a requested worker, which stays requested.
                let unknown = RegisteredBy::Unknown;
                let _before = self.registered_by.compare_exchange(unknown, by);
            }
            RegisteredBy::Unknown => {}
        }
    }

    /// Renews the lease.
    pub(super) fn mark_alive(&self, origin: Origin) {
        self.alive_at_ms.store(milliseconds(origin), Ordering::Release);
    }

    /// Whether the worker has a lease, and it has expired.
    pub(super) fn lease_is_over(&self, origin: Origin) -> bool {
        let alive_at = Duration::from_millis(self.alive_at_ms.load(Ordering::Acquire));
        let silent = origin.elapsed().saturating_sub(alive_at);
        self.registration.lease.is_some_and(|lease| silent >= lease)
    }

    /// Marks that the worker replaces a worker of the same name with another registration.
    pub(super) fn mark_replacement(&self) {
        self.is_replacement.store(true, Ordering::Release);
    }

    /// Whether the worker's agent counts as connected. It has an open stream, or it never had one (it publishes over a
    /// broker) and has replaced another agent.
    pub(super) fn has_agent(&self) -> bool {
        let had_stream = self.had_stream.load(Ordering::Acquire);
        let is_replacement = self.is_replacement.load(Ordering::Acquire);
        self.streams.load(Ordering::Acquire) > 0 || (is_replacement && !had_stream)
    }

    pub(super) const fn id(&self) -> &WorkerId {
        &self.registration.worker
    }

    /// Whether this is a worker or a pool.
    pub(super) const fn kind(&self) -> HolderKind {
        self.registration.kind
    }

    /// Sort key among all workers.
    pub(super) const fn place(&self) -> (&PartitionKey, &WorkerId) {
        (&self.registration.partition, &self.registration.worker)
    }

    pub(super) fn address(&self) -> WorkerAddress {
        WorkerAddress {
            partition: self.registration.partition.clone(),
            worker: self.registration.worker.clone(),
        }
    }

    /// Whether the worker was removed, or the server stops.
    pub(super) fn is_removed(&self) -> bool {
        self.cancel.is_cancelled()
    }

    /// Admits events, because the worker's blocks are restored or there are none.
    pub(super) fn admit_events(&self) {
        // The worker may be open already.
        let _open = self.restored.set(());
        self.partition.restoring(self.kind()).end(self.id());
    }

    /// Whether events are admitted.
    pub(super) fn is_open(&self) -> bool {
        self.restored.get().is_some()
    }

    /// Waits until events are admitted. Returns false if the worker was removed before.
    pub(super) async fn opened(&self) -> bool {
        select! {
            () = self.cancel.cancelled() => false,
            _ = self.restored.wait() => true,
        }
    }

    /// Refuses new streams from now on, unless a stream is open. Returns whether it refuses them.
    pub(super) async fn close_if_unconnected(&self) -> bool {
        let mut publishers = self.publishers.lock().await;
        let is_connected = |at: &Arc<PushSource>| at.shared().link().is_connected;
        publishers.closed |= !publishers.by_name.values().any(is_connected);
        publishers.closed
    }

    /// Ends the tasks of all publishers and refuses new ones. Returns the publishers' sources.
    pub(super) async fn close_publishers(&self) -> Vec<IndexedSource> {
        let mut publishers = self.publishers.lock().await;
        publishers.closed = true;
        let closed = mem::take(&mut publishers.by_name);
        while let Some(ended) = publishers.tasks.join_next().await {
            if let Err(error) = ended {
                tracing::error!(%error, worker = %self.id(), "the task of a publisher failed");
            }
        }
        closed.into_values().filter_map(|publisher| publisher.shared().source()).collect()
    }

    pub(super) fn unknown(&self) -> IngestError {
        IngestError::UnknownWorker { address: self.address() }
    }

    /// Stops the tasks of the worker's endpoints, and waits for their end.
    pub(super) async fn stop_links(&self) {
        self.cancel.cancel();
        let mut links = self.links.lock().await;
        while let Some(ended) = links.tasks.join_next().await {
            if let Err(error) = ended {
                tracing::error!(%error, worker = %self.id(), "the task of an endpoint failed");
            }
        }
    }
}

/// Counts as an open stream of a worker's agent until dropped.
#[derive(Debug)]
pub struct AgentStream(Arc<Worker>);

impl AgentStream {
    pub(super) fn new(worker: &Arc<Worker>) -> Self {
        worker.streams.fetch_add(1, Ordering::AcqRel);
        worker.had_stream.store(true, Ordering::Release);
        Self(Arc::clone(worker))
    }
}

impl Drop for AgentStream {
    fn drop(&mut self) {
        let before = self.0.streams.fetch_sub(1, Ordering::AcqRel);
        debug_assert!(before > 0, "only an open stream ends");
    }
}

fn milliseconds(origin: Origin) -> u64 {
    u64::try_from(origin.elapsed().as_millis()).unwrap_or(u64::MAX)
}
