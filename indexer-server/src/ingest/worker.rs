use super::{IngestError, push_source::PushSource, subscription::Subscription};
use crate::partitions::{IndexedSource, Origin, Partition, RegisteredBy};
use crossbeam_utils::atomic::AtomicCell;
use kvasir_process::shares::TakenShare;
use kvasir_proto::{
    convert::{Registration, WorkerAddress},
    types::{HolderKind, PartitionKey, WorkerId},
};
use std::{
    collections::BTreeMap,
    mem,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};
use tokio::{
    select,
    sync::{Mutex, SetOnce},
    task::JoinSet,
};
use tokio_util::sync::CancellationToken;

/// One registered worker.
#[derive(Debug)]
pub(super) struct Worker {
    pub(super) registration: Registration,
    pub(super) partition: Arc<Partition>,
    /// Ends the tasks of its endpoints.
    pub(super) cancel: CancellationToken,
    pub(super) links: Mutex<Links>,
    pub(super) publishers: Mutex<Publishers>,
    /// The sockets of its endpoints.
    pub(super) subscriptions: Vec<Subscription>,
    registered_by: AtomicCell<RegisteredBy>,
    /// Names of its sources while its blocks are being restored.
    awaited_sources: Vec<String>,
    /// Its last sign of life, in milliseconds since the origin.
    alive_at_ms: AtomicU64,
    /// Whether it replaced a worker of the same name.
    is_replacement: AtomicBool,
    /// Open streams of its agent,
    streams: AtomicUsize,
    /// and whether there ever was one.
    had_stream: AtomicBool,
    /// Set once its blocks are restored: nothing feeds it before.
    pub(super) restored: SetOnce<()>,
}

/// What a worker takes of the limits: a worker, sockets, bytes.
pub(super) type Room = [TakenShare; 3];

/// Tasks and sources of a worker's endpoints.
#[derive(Debug, Default)]
pub(super) struct Links {
    pub(super) tasks: JoinSet<()>,
    pub(super) sources: Vec<IndexedSource>,
    /// Counts the worker, their sockets and the bytes of the registration among those that there may be.
    _room: Option<Room>,
}

/// Publishers of a worker, by the name of their source.
#[derive(Debug, Default)]
pub(super) struct Publishers {
    /// The worker was removed: no one may open a stream any more.
    pub(super) closed: bool,
    pub(super) by_name: BTreeMap<String, Arc<PushSource>>,
    pub(super) tasks: JoinSet<()>,
}

impl Worker {
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

    /// The same, for a worker whose blocks are being restored and whose sources are known.
    pub(super) fn awaiting(self, sources: Vec<String>) -> Self {
        Self { awaited_sources: sources, ..self }
    }

    /// The same, with the sockets of its endpoints.
    pub(super) fn subscribed(self, subscriptions: Vec<Subscription>) -> Self {
        Self { subscriptions, ..self }
    }

    /// Its known sources while they may not be in the index yet; none once it is open.
    pub(super) fn awaited_sources(&self) -> &[String] {
        if self.is_open() { &[] } else { &self.awaited_sources }
    }

    /// Who registered it.
    pub(super) fn registered_by(&self) -> RegisteredBy {
        self.registered_by.load()
    }

    /// It was registered again, in the same way. A request takes precedence over the configuration, and states that the
    /// engine is still at its sockets.
    pub(super) fn merge_registered_by(&self, by: RegisteredBy) {
        match by {
            RegisteredBy::Request => {
                self.subscriptions.iter().for_each(Subscription::renew);
                self.registered_by.store(by);
            }
            RegisteredBy::Configuration => {
                // It fails for a requested one, which stays so.
                let unknown = RegisteredBy::Unknown;
                let _before = self.registered_by.compare_exchange(unknown, by);
            }
            RegisteredBy::Unknown => {}
        }
    }

    /// It has shown a sign of life.
    pub(super) fn mark_alive(&self, origin: Origin) {
        self.alive_at_ms.store(milliseconds(origin), Ordering::Release);
    }

    /// Whether its lease, if it has one, has expired.
    pub(super) fn lease_is_over(&self, origin: Origin) -> bool {
        let alive_at = Duration::from_millis(self.alive_at_ms.load(Ordering::Acquire));
        let silent = origin.elapsed().saturating_sub(alive_at);
        self.registration.lease.is_some_and(|lease| silent >= lease)
    }

    /// It replaces a worker of the same name with another registration.
    pub(super) fn mark_replacement(&self) {
        self.is_replacement.store(true, Ordering::Release);
    }

    /// Whether its agent counts as connected: it has an open stream, or it never had one (it publishes over a
    /// broker) and has replaced another.
    pub(super) fn has_agent(&self) -> bool {
        let had_stream = self.had_stream.load(Ordering::Acquire);
        let is_replacement = self.is_replacement.load(Ordering::Acquire);
        self.streams.load(Ordering::Acquire) > 0 || (is_replacement && !had_stream)
    }

    pub(super) const fn id(&self) -> &WorkerId {
        &self.registration.worker
    }

    /// Whether it is a worker or a pool.
    pub(super) const fn kind(&self) -> HolderKind {
        self.registration.kind
    }

    /// Its place among all workers.
    pub(super) const fn place(&self) -> (&PartitionKey, &WorkerId) {
        (&self.registration.partition, &self.registration.worker)
    }

    pub(super) fn address(&self) -> WorkerAddress {
        WorkerAddress {
            partition: self.registration.partition.clone(),
            worker: self.registration.worker.clone(),
        }
    }

    /// Whether it was removed, or the server stops.
    pub(super) fn is_removed(&self) -> bool {
        self.cancel.is_cancelled()
    }

    /// Lets events in: its blocks are restored, or there are none.
    pub(super) fn open(&self) {
        // It may be open already.
        let _open = self.restored.set(());
        self.partition.restoring(self.kind()).end(self.id());
    }

    /// Whether events may come in.
    pub(super) fn is_open(&self) -> bool {
        self.restored.get().is_some()
    }

    /// Waits until events may come in; false if it was removed before.
    pub(super) async fn opened(&self) -> bool {
        select! {
            () = self.cancel.cancelled() => false,
            _ = self.restored.wait() => true,
        }
    }

    /// Refuses new streams from now on, unless one is open. Returns whether it refuses them.
    pub(super) async fn close_if_unconnected(&self) -> bool {
        let mut publishers = self.publishers.lock().await;
        let is_connected = |at: &Arc<PushSource>| at.shared().link().is_connected;
        publishers.closed |= !publishers.by_name.values().any(is_connected);
        publishers.closed
    }

    /// Ends the tasks of all publishers and lets no new one in. Returns their sources.
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

    /// Ends the tasks of its endpoints and waits for them.
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
    pub(super) fn of(worker: &Arc<Worker>) -> Self {
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
