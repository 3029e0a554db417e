//! Writes checkpoints: at intervals, when asked, and once more before the process ends.

use super::{CheckpointError, CheckpointMetrics, Change, Store, Written};
use crate::index::{Partitions, Shard, Writer};
use kvasir_index::{IndexError, WorkerImage};
use kvasir_proto::{
    convert::{Registration, WorkerAddress},
    pb,
};
use prost::Message;
use std::{
    collections::{BTreeMap, BTreeSet},
    fmt, mem,
    sync::Arc,
    time::Duration,
};
use tokio::{
    select,
    sync::{mpsc, oneshot},
    task::spawn_blocking,
    time::{Instant, MissedTickBehavior, interval},
};
use tokio_util::sync::CancellationToken;

/// Requests for a checkpoint that wait; whoever asks for more waits.
const REQUESTS_MAX: usize = 64;
/// Blocks after which what was collected is written, before more is.
const BATCH_BLOCKS_MAX: usize = 1 << 20;
/// Workers after which it is.
const BATCH_WORKERS_MAX: usize = 1_024;

/// Registered workers.
#[derive(Debug, Clone, Default)]
pub struct Roster {
    /// Those of which the index has all that is known.
    pub present: Vec<Registration>,
    /// Those that are still being restored: what is on disk of them stays.
    pub expected: Vec<Registration>,
}

/// Says who is registered.
pub type Registry = Arc<dyn Fn() -> Roster + Send + Sync>;

/// A checkpoint that is on disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Report {
    /// Workers of which something was written.
    pub workers: usize,
    /// Blocks written.
    pub blocks: usize,
    /// Bytes on disk, of all checkpoints.
    pub disk_bytes: u64,
    /// How long it took.
    pub duration: Duration,
}

type Reply = oneshot::Sender<Result<Report, CheckpointError>>;

struct Request {
    compact: bool,
    reply: Reply,
}

/// Asks for checkpoints. Clones ask the same task.
#[derive(Clone)]
pub struct Checkpoints {
    requests: mpsc::Sender<Request>,
    metrics: CheckpointMetrics,
}

impl fmt::Debug for Checkpoints {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Checkpoints")
    }
}

impl Checkpoints {
    /// Waits for a checkpoint of all that was applied before; requests that come together get one.
    ///
    /// # Errors
    /// If it cannot be written, or the server is stopping.
    pub async fn create(&self, compact: bool) -> Result<Report, CheckpointError> {
        let (reply, answer) = oneshot::channel();
        let sent = self.requests.send(Request { compact, reply }).await;
        sent.map_err(|_gone| CheckpointError::Stopping)?;
        answer.await.map_err(|_gone| CheckpointError::Stopping)?
    }

    /// What became of checkpoints so far.
    #[must_use]
    pub const fn metrics(&self) -> &CheckpointMetrics {
        &self.metrics
    }
}

/// The task that writes checkpoints.
pub struct Checkpointer {
    store: Arc<Store>,
    partitions: Arc<Partitions>,
    writer: Writer,
    registry: Registry,
    interval: Duration,
    metrics: CheckpointMetrics,
    requests: mpsc::Receiver<Request>,
    /// Registrations on disk.
    stored: BTreeMap<WorkerAddress, Vec<u8>>,
}

impl fmt::Debug for Checkpointer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Checkpointer")
    }
}

/// What is to be written together.
#[derive(Default)]
struct Batch {
    changes: Vec<Change>,
    blocks: usize,
    /// Whose images are in it, to be made whole next time if it cannot be written.
    images: Vec<(Arc<Shard>, WorkerAddress)>,
}

impl Checkpointer {
    /// A task for a store that holds these registrations.
    #[must_use]
    pub fn new(
        store: Arc<Store>,
        (partitions, writer): (Arc<Partitions>, Writer),
        registry: Registry,
        interval: Duration,
        metrics: CheckpointMetrics,
        stored: BTreeMap<WorkerAddress, Vec<u8>>,
    ) -> (Self, Checkpoints) {
        let (sender, requests) = mpsc::channel(REQUESTS_MAX);
        let checkpoints = Checkpoints { requests: sender, metrics: metrics.clone() };
        let task =
            Self { store, partitions, writer, registry, interval, metrics, requests, stored };
        (task, checkpoints)
    }

    /// Writes checkpoints until `stop` is cancelled, then a last one. One that fails is tried again
    /// at the next interval: nothing of it is lost.
    pub async fn run(mut self, stop: CancellationToken) {
        let mut ticks = interval(self.interval);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut asked = Vec::with_capacity(REQUESTS_MAX);
        loop {
            let stopping = select! {
                () = stop.cancelled() => true,
                _ = ticks.tick() => false,
                _ = self.requests.recv_many(&mut asked, REQUESTS_MAX) => false,
            };
            let compact = asked.iter().any(|request| request.compact);
            let outcome = self.checkpoint(compact).await;
            for request in asked.drain(..) {
                let _asker_gone = request.reply.send(outcome.clone());
            }
            if stopping {
                return;
            }
        }
    }

    async fn checkpoint(&mut self, compact: bool) -> Result<Report, CheckpointError> {
        let begin = Instant::now();
        let outcome = match self.write_changes().await {
            Ok(report) if compact => self.compact().await.map(|()| report),
            outcome => outcome,
        };
        let outcome = outcome.map(|report| Report {
            disk_bytes: self.store.disk_bytes(),
            duration: begin.elapsed(),
            ..report
        });
        match &outcome {
            Ok(report) => {
                tracing::debug!(?report, "checkpoint written");
                self.metrics.written(report);
            }
            Err(CheckpointError::Stopping) => {}
            Err(error) => {
                tracing::error!(%error, "the checkpoint failed: it is tried again");
                self.metrics.failed(error);
            }
        }
        outcome
    }

    async fn compact(&self) -> Result<(), CheckpointError> {
        let store = Arc::clone(&self.store);
        let compacted = spawn_blocking(move || store.compact()).await;
        Ok(compacted.map_err(|_panic| CheckpointError::Stopping)??)
    }

    async fn write_changes(&mut self) -> Result<Report, CheckpointError> {
        let roster = (self.registry)();
        let mut report = Report::default();
        let mut batch = Batch::default();
        let known: BTreeSet<_> =
            roster.present.iter().chain(&roster.expected).map(address).collect();
        for gone in self.stored.keys().filter(|address| !known.contains(address)) {
            batch.changes.push(Change::Forget(gone.clone()));
        }
        for registration in &roster.present {
            self.add(registration, &mut batch).await?;
            if batch.blocks >= BATCH_BLOCKS_MAX || batch.changes.len() >= BATCH_WORKERS_MAX {
                self.write(mem::take(&mut batch), &mut report).await?;
            }
        }
        self.write(batch, &mut report).await?;
        Ok(report)
    }

    /// Puts what changed of a worker to a batch.
    async fn add(
        &self,
        registration: &Registration,
        batch: &mut Batch,
    ) -> Result<(), CheckpointError> {
        let address = address(registration);
        let bytes = pb::RegisterWorkerRequest::from(registration).encode_to_vec();
        let is_new = self.stored.get(&address) != Some(&bytes);
        if is_new {
            batch.changes.push(Change::Register(address.clone(), bytes));
        }
        let Some(partition) = self.partitions.get(&address.partition) else { return Ok(()) };
        let shard = partition.shard_of(&address.worker);
        if !is_new && !shard.read().is_changed(&address.worker) {
            return Ok(());
        }
        match self.writer.cut(shard, address.worker.clone(), is_new).await? {
            Ok(image) => {
                batch.blocks += blocks(&image);
                batch.images.push((Arc::clone(shard), address.clone()));
                batch.changes.push(Change::Image(address, Box::new(image)));
                Ok(())
            }
            // Registered, and nothing has fed it yet; or removed just now.
            Err(IndexError::UnknownWorker { .. }) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    async fn write(&mut self, batch: Batch, report: &mut Report) -> Result<(), CheckpointError> {
        if batch.changes.is_empty() {
            return Ok(());
        }
        let store = Arc::clone(&self.store);
        let Batch { changes, blocks, images } = batch;
        let done = spawn_blocking(move || (store.write(&changes), changes)).await;
        let (written, changes) = done.map_err(|_panic| CheckpointError::Stopping)?;
        match written {
            Ok(Written { bytes }) => {
                self.metrics.add_bytes(bytes);
                report.workers += images.len();
                report.blocks += blocks;
                self.note(changes);
                Ok(())
            }
            Err(error) => {
                for (shard, address) in images {
                    let worker = address.worker;
                    self.writer.change(&shard, move |index| index.cut_failed(&worker)).await?;
                }
                Err(error.into())
            }
        }
    }

    /// Notes whose registrations are on disk.
    fn note(&mut self, changes: Vec<Change>) {
        for change in changes {
            match change {
                Change::Register(address, bytes) => {
                    self.stored.insert(address, bytes);
                }
                Change::Forget(address) => {
                    self.stored.remove(&address);
                }
                Change::Image(..) => {}
            }
        }
    }
}

fn address(registration: &Registration) -> WorkerAddress {
    WorkerAddress {
        partition: registration.partition.clone(),
        worker: registration.worker.clone(),
    }
}

fn blocks(image: &WorkerImage) -> usize {
    let ranks = image.ranks.iter().map(|rank| {
        let runs = rank.pages.iter().flat_map(|page| &page.runs);
        runs.map(|run| run.blocks.len()).sum::<usize>() + rank.names.len()
    });
    ranks.sum()
}
