use super::{IngestError, publisher::Publisher};
use crate::partitions::{IndexedSource, Origin, Partition, RegisteredBy};
use crossbeam_utils::atomic::AtomicCell;
use kvasir_proto::{
    convert::{Registration, WorkerAddress},
    types::{PartitionKey, WorkerId},
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
    sync::{Mutex, OwnedSemaphorePermit, SetOnce},
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
    registered_by: AtomicCell<RegisteredBy>,
    /// Sources that it is known to have while its blocks are on their way.
    awaited_sources: Vec<String>,
    /// When it was heard of last, in milliseconds since the origin.
    heard_at_ms: AtomicU64,
    /// Whether it replaced one of its name.
    replaces: AtomicBool,
    /// Streams of its agent that are open,
    streams: AtomicUsize,
    /// and whether there ever was one.
    has_spoken: AtomicBool,
    /// Set once what a checkpoint has of it is back: nothing feeds it before.
    pub(super) restored: SetOnce<()>,
}

/// Tasks and sources of a worker's endpoints.
#[derive(Debug, Default)]
pub(super) struct Links {
    pub(super) tasks: JoinSet<()>,
    pub(super) sources: Vec<IndexedSource>,
    /// Counts their sockets among those that the server may have.
    _sockets: Option<OwnedSemaphorePermit>,
}

/// Publishers of a worker, by the name of their source.
#[derive(Debug, Default)]
pub(super) struct Publishers {
    /// The worker was removed: nobody may open a stream any more.
    pub(super) closed: bool,
    pub(super) by_name: BTreeMap<String, Arc<Publisher>>,
    pub(super) tasks: JoinSet<()>,
}

impl Worker {
    pub(super) fn new(
        registration: Registration,
        registered_by: RegisteredBy,
        partition: Arc<Partition>,
        cancel: CancellationToken,
        sockets: OwnedSemaphorePermit,
    ) -> Self {
        Self {
            registration,
            partition,
            cancel,
            links: Mutex::new(Links { _sockets: Some(sockets), ..Links::default() }),
            publishers: Mutex::default(),
            registered_by: AtomicCell::new(registered_by),
            awaited_sources: Vec::new(),
            heard_at_ms: AtomicU64::new(0),
            replaces: AtomicBool::new(false),
            streams: AtomicUsize::new(0),
            has_spoken: AtomicBool::new(false),
            restored: SetOnce::new(),
        }
    }

    /// The same, whose blocks are on their way, and of which these sources are known.
    pub(super) fn awaiting(self, sources: Vec<String>) -> Self {
        Self { awaited_sources: sources, ..self }
    }

    /// Sources that it is known to have and that may not be in the index yet; none once it is open.
    pub(super) fn awaited_sources(&self) -> &[String] {
        if self.is_open() { &[] } else { &self.awaited_sources }
    }

    /// Who wants it to be registered.
    pub(super) fn registered_by(&self) -> RegisteredBy {
        self.registered_by.load()
    }

    /// It is wanted as it is already registered. What somebody has asked for is so for good.
    pub(super) fn wanted_by(&self, by: RegisteredBy) {
        match by {
            RegisteredBy::Request => self.registered_by.store(by),
            RegisteredBy::Configuration => {
                // It fails for one that somebody has asked for, which stays so.
                let unknown = RegisteredBy::Unknown;
                let _before = self.registered_by.compare_exchange(unknown, by);
            }
            RegisteredBy::Unknown => {}
        }
    }

    /// It has given a sign of life.
    pub(super) fn heard(&self, origin: Origin) {
        self.heard_at_ms.store(milliseconds(origin), Ordering::Release);
    }

    /// Whether it has a lease, and was not heard of for so long.
    pub(super) fn lease_is_over(&self, origin: Origin) -> bool {
        let heard_at = Duration::from_millis(self.heard_at_ms.load(Ordering::Acquire));
        let silent = origin.elapsed().saturating_sub(heard_at);
        self.registration.lease.is_some_and(|lease| silent >= lease)
    }

    /// It takes the place of one of its name that was registered otherwise.
    pub(super) fn replaces(&self) {
        self.replaces.store(true, Ordering::Release);
    }

    /// Whether its agent is there: at the other end of a stream; where it never had one, by the rule for those that are heard
    /// over a broker, that who has replaced another is.
    pub(super) fn has_agent(&self) -> bool {
        let has_spoken = self.has_spoken.load(Ordering::Acquire);
        let is_replacement = self.replaces.load(Ordering::Acquire);
        self.streams.load(Ordering::Acquire) > 0 || (is_replacement && !has_spoken)
    }

    pub(super) const fn id(&self) -> &WorkerId {
        &self.registration.worker
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

    /// Lets events in: what a checkpoint has of it is back, or there is none.
    pub(super) fn open(&self) {
        // It may be open already.
        let _open = self.restored.set(());
        self.partition.restoring().end(self.id());
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

/// A stream of a worker's agent is open, until dropped.
#[derive(Debug)]
pub struct Speaking(Arc<Worker>);

impl Speaking {
    pub(super) fn of(worker: &Arc<Worker>) -> Self {
        worker.streams.fetch_add(1, Ordering::AcqRel);
        worker.has_spoken.store(true, Ordering::Release);
        Self(Arc::clone(worker))
    }
}

impl Drop for Speaking {
    fn drop(&mut self) {
        self.0.streams.fetch_sub(1, Ordering::AcqRel);
    }
}

fn milliseconds(origin: Origin) -> u64 {
    u64::try_from(origin.elapsed().as_millis()).unwrap_or(u64::MAX)
}
