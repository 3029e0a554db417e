//! Writes checkpoints: at intervals, on request, and once more before the process ends.

use super::stream::Stream;
use super::{CheckpointError, CheckpointMetrics, Positions, Report, SharedStore};
use crate::partitions::{Partitions, RegisteredBy, Shard, Writer};
use crate::snapshot::{Change, StoreError, StreamPosition, Unwritten, WorkerState};
use kvasir_index::{CutReceipt, IndexError, WorkerImage};
use kvasir_proto::convert::{Registration, WorkerAddress};
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use std::{fmt, mem};
use tokio::select;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{Instant, MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

/// Maximum number of queued requests for a checkpoint. Further callers wait.
const REQUESTS_MAX: usize = 64;
/// Number of collected blocks after which a batch is written.
const BATCH_BLOCKS_MAX: usize = 1 << 20;
/// Number of collected workers after which a batch is written.
const BATCH_WORKERS_MAX: usize = 1_024;

/// Where checkpoints are stored and how often they are written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CheckpointConfig {
    /// Folder of the store.
    pub folder: PathBuf,
    /// Time between two checkpoints.
    pub interval: Duration,
}

/// Registered workers.
#[derive(Debug, Clone, Default)]
pub struct Roster {
    /// Fully restored workers, and who registered each.
    pub present: Vec<(Registration, RegisteredBy)>,
    /// Workers that are still being restored: their data on disk stays.
    pub expected: Vec<Registration>,
}

/// Lists the registered workers.
pub type Registry = Arc<dyn Fn() -> Roster + Send + Sync>;

struct Request {
    compact: bool,
    reply: oneshot::Sender<Result<Report, CheckpointError>>,
}

/// Whether to rewrite (compact) tables after a checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Compact {
    /// A request asked for compaction.
    Requested,
    /// Compact once per process, when this process has replaced all data of the previous process.
    IfReplaced,
    /// The process ends soon: skip compaction.
    No,
}

/// Requests checkpoints from the checkpoint task. Clones share the task.
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
    /// Waits for a checkpoint of all changes applied before the call. Concurrent requests share one checkpoint.
    ///
    /// # Errors
    /// If the checkpoint cannot be written, or the server is stopping.
    pub async fn create(&self, compact: bool) -> Result<Report, CheckpointError> {
        let (reply, answer) = oneshot::channel();
        let sent = self.requests.send(Request { compact, reply }).await;
        sent.map_err(|_gone| CheckpointError::Stopping)?;
        answer.await.map_err(|_gone| CheckpointError::Stopping)?
    }

    /// Metrics of the checkpoints so far.
    #[must_use]
    pub const fn metrics(&self) -> &CheckpointMetrics {
        &self.metrics
    }
}

/// The task that writes checkpoints.
pub struct Checkpointer {
    shared_store: SharedStore,
    partitions: Arc<Partitions>,
    writer: Writer,
    registry: Registry,
    interval: Duration,
    metrics: CheckpointMetrics,
    requests: mpsc::Receiver<Request>,
    /// The stream whose position is persisted with checkpoints.
    stream: Option<Stream>,
    /// Workers on disk, with their stored properties.
    stored: BTreeMap<WorkerAddress, Stored>,
}

/// Stored properties of a worker.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Stored {
    /// Encoded registration; `None` if another process wrote the worker.
    registration: Option<Vec<u8>>,
    registered_by: RegisteredBy,
    /// Whether the worker has neither blocks nor sources.
    is_empty: bool,
}

impl fmt::Debug for Checkpointer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Checkpointer")
    }
}

/// Changes to write together.
#[derive(Default)]
struct Batch {
    images: Vec<PendingImage>,
    gone: Vec<WorkerAddress>,
    blocks: usize,
}

/// An image to be written.
struct PendingImage {
    address: WorkerAddress,
    registration: Vec<u8>,
    registered_by: RegisteredBy,
    held_blocks: u64,
    image: WorkerImage,
    /// `None` if the image was not cut from an index.
    taken: Option<(Arc<Shard>, CutReceipt)>,
}

impl Checkpointer {
    /// Creates the task for an empty store, or for a store whose workers [`knows`](Self::knows) then lists.
    #[must_use]
    pub fn new(
        shared_store: SharedStore,
        partitions: Arc<Partitions>,
        writer: Writer,
        registry: Registry,
        interval: Duration,
        metrics: CheckpointMetrics,
    ) -> (Self, Checkpoints) {
        let (sender, requests) = mpsc::channel(REQUESTS_MAX);
        let checkpoints = Checkpoints { requests: sender, metrics: metrics.clone() };
        let task = Self {
            shared_store,
            partitions,
            writer,
            registry,
            interval,
            metrics,
            requests,
            stream: None,
            stored: BTreeMap::new(),
        };
        (task, checkpoints)
    }

    /// Registers workers that another process wrote into the store.
    pub fn knows(&mut self, stored: impl IntoIterator<Item = WorkerAddress>) {
        let registered_by = RegisteredBy::Unknown;
        let by_others = || Stored { registration: None, registered_by, is_empty: false };
        self.stored.extend(stored.into_iter().map(|address| (address, by_others())));
    }

    /// Persists the position of a stream with the checkpoints, and publishes the persisted position.
    ///
    /// A position is written only after all changes of its messages: it is read before the first worker is cut, and
    /// written last. After a crash it lags behind the stored workers, never the other way round. While any worker is
    /// still being restored, no position is written.
    #[must_use]
    pub fn following(
        mut self,
        position: Positions,
        on_disk: watch::Sender<Option<StreamPosition>>,
    ) -> Self {
        self.stream = Some(Stream { position, on_disk });
        self
    }

    /// Writes checkpoints until `stop` is cancelled, then a last one. After a failure, the next checkpoint at the next
    /// interval includes all missing changes.
    pub async fn run(mut self, stop: CancellationToken) {
        let mut ticks = interval(self.interval);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        // The first tick is immediate, when there are no changes to write.
        ticks.tick().await;
        let mut requested = Vec::with_capacity(REQUESTS_MAX);
        // False once all `Checkpoints` are dropped: further requests are impossible.
        let mut is_requested = true;
        loop {
            let stopping = select! {
                () = stop.cancelled() => true,
                _ = ticks.tick() => false,
                count = self.requests.recv_many(&mut requested, REQUESTS_MAX), if is_requested => {
                    is_requested = count > 0;
                    if !is_requested {
                        continue;
                    }
                    false
                }
            };
            let compact = requested.iter().any(|request| request.compact);
            let compact = match (stopping, compact) {
                (_, true) => Compact::Requested,
                (true, false) => Compact::No,
                (false, false) => Compact::IfReplaced,
            };
            let outcome = self.checkpoint(compact).await;
            for request in requested.drain(..) {
                let _asker_gone = request.reply.send(outcome.clone());
            }
            if stopping {
                return;
            }
        }
    }

    /// Writes a checkpoint, and records its result. The next checkpoint retries after a failure.
    async fn checkpoint(&mut self, compact: Compact) -> Result<Report, CheckpointError> {
        let begin = Instant::now();
        let outcome = self.write_and_measure(compact).await;
        let outcome = outcome.map(|report| Report { duration: begin.elapsed(), ..report });
        match &outcome {
            Ok(report) => {
                tracing::debug!(?report, "checkpoint written");
                self.metrics.written(report);
            }
            Err(CheckpointError::Stopping) => {}
            Err(error) => {
                tracing::error!(%error, "the checkpoint failed: the next one retries");
                self.metrics.failed(error);
            }
        }
        outcome
    }

    /// Writes the changes, then compacts the database if this is requested or useful.
    async fn write_and_measure(&mut self, compact: Compact) -> Result<Report, CheckpointError> {
        let report = self.write_changes().await?;
        let figures = self.shared_store.call(move |store| {
            if compact == Compact::Requested
                || compact == Compact::IfReplaced && store.is_replaced()
            {
                store.compact()?;
            }
            store.figures()
        });
        let figures = figures.await??;
        let written_bytes = figures.written_bytes();
        let disk_bytes = figures.disk_bytes;
        Ok(Report { written_bytes, disk_bytes, ..report })
    }

    /// Writes all changed workers in batches, removes workers that are gone, and stores the broker's position last.
    async fn write_changes(&mut self) -> Result<Report, CheckpointError> {
        // Read the position first: every later cut includes the changes of the messages up to it.
        let position = self.stream.as_ref().and_then(|stream| (stream.position)());
        let Roster { present, expected } = (self.registry)();
        let position = position.filter(|_position| expected.is_empty());
        let mut report = Report::default();
        let mut batch = Batch::default();
        let known: BTreeSet<_> =
            present.iter().map(|(at, _)| at).chain(&expected).map(Registration::address).collect();
        let gone = self.stored.keys().filter(|address| !known.contains(address));
        batch.gone.extend(gone.cloned());
        let stale = self.stale(present.iter().map(|(at, _)| at.address()).collect()).await?;
        for (registration, registered_by) in &present {
            self.add(registration, *registered_by, &stale, &mut batch).await?;
            if batch.blocks >= BATCH_BLOCKS_MAX || batch.images.len() >= BATCH_WORKERS_MAX {
                self.write(mem::take(&mut batch), &mut report).await?;
            }
        }
        self.write(batch, &mut report).await?;
        self.persist_position(position).await?;
        Ok(report)
    }

    /// Writes the stream position after all other changes, and publishes the persisted position. Does nothing if the
    /// broker's stream is not read.
    async fn persist_position(&self, position: Option<StreamPosition>) -> Result<(), StoreError> {
        let Some(stream) = &self.stream else { return Ok(()) };
        let written = self.shared_store.call(move |store| {
            let new = position.filter(|_| store.stream_position() != position);
            new.map_or(Ok(()), |position| store.set_stream_position(position))?;
            Ok(store.stream_position())
        });
        stream.publish(written.await??);
        Ok(())
    }

    /// Returns the workers among `workers` that need complete images. The result is valid until the checkpoint ends or
    /// fails: within a checkpoint, only this function reopens the store.
    async fn stale(
        &self,
        mut workers: Vec<WorkerAddress>,
    ) -> Result<BTreeSet<WorkerAddress>, StoreError> {
        let ask = self.shared_store.call(move |store| {
            store.ensure_writable()?;
            workers.retain(|worker| store.needs_whole(worker));
            Ok(workers)
        });
        Ok(ask.await??.into_iter().collect())
    }

    /// Adds the changes of a worker to a batch. Does nothing if the worker's partition is gone.
    async fn add(
        &self,
        registration: &Registration,
        registered_by: RegisteredBy,
        stale: &BTreeSet<WorkerAddress>,
        batch: &mut Batch,
    ) -> Result<(), CheckpointError> {
        let address = registration.address();
        let registration = registration.encode();
        let stored = self.stored.get(&address);
        let is_same = stored.is_some_and(|at| at.registration.as_ref() == Some(&registration));
        let whole = !is_same || stale.contains(&address);
        // Each image records who registered the worker.
        let is_news = whole || stored.is_some_and(|at| at.registered_by != registered_by);
        let Some(partition) = self.partitions.get(&address.partition) else { return Ok(()) };
        let shard = partition.shard_of(&address.worker);
        let view = shard.read().worker(&address.worker).map(|worker| {
            let held =
                |rank: kvasir_index::HolderView<'_>| rank.placed_blocks() + rank.parked_blocks();
            (worker.has_changed(), worker.holders().map(held).sum())
        });
        let pending = |image, held_blocks, taken| PendingImage {
            address: address.clone(),
            registration: registration.clone(),
            registered_by,
            held_blocks,
            image,
            taken,
        };
        let taken = match view {
            Some((changed, _)) if !changed && !is_news => return Ok(()),
            Some((_, held)) => {
                let taken = self.writer.cut(shard, address.worker.clone(), whole).await?;
                taken.map(|(image, receipt)| {
                    pending(image, held, Some((Arc::clone(shard), receipt)))
                })
            }
            None if !is_news && stored.is_some_and(|at| at.is_empty) => return Ok(()),
            None => Err(IndexError::UnknownWorker { worker: address.worker.clone() }),
        };
        let image = match taken {
            Ok(image) => image,
            // No source has fed the worker yet, or all its sources are gone.
            Err(IndexError::UnknownWorker { worker }) => pending(nothing(worker), 0, None),
            Err(error) => return Err(error.into()),
        };
        batch.blocks += blocks(&image.image);
        batch.images.push(image);
        Ok(())
    }

    /// Writes a batch. If the write fails, returns the images' notes to the index, so that the next checkpoint contains
    /// the changes. Does nothing if the batch is empty.
    async fn write(&mut self, batch: Batch, report: &mut Report) -> Result<(), CheckpointError> {
        if batch.images.is_empty() && batch.gone.is_empty() {
            return Ok(());
        }
        let call = self.shared_store.call(move |store| {
            let written = store.write(&changes(&batch));
            (written, batch)
        });
        // If the store is gone meanwhile, so are the images. A new store needs complete images then.
        let (written, batch) = call.await?;
        let Batch { images, gone, blocks } = batch;
        if let Err(Unwritten { error, .. }) = written {
            for PendingImage { taken, .. } in images {
                self.give_back(taken).await?;
            }
            return Err(error.into());
        }
        report.workers += images.len();
        report.blocks += blocks;
        gone.iter().for_each(|address| drop(self.stored.remove(address)));
        for PendingImage { address, registration, registered_by, image, .. } in images {
            let registration = Some(registration);
            let is_empty = image.sources.is_empty();
            self.stored.insert(address, Stored { registration, registered_by, is_empty });
        }
        Ok(())
    }

    /// Returns the notes of an image that could not be written to the index. An image without notes needs no change.
    async fn give_back(
        &self,
        taken: Option<(Arc<Shard>, CutReceipt)>,
    ) -> Result<(), CheckpointError> {
        if let Some((shard, receipt)) = taken {
            self.writer.change(&shard, move |index| index.abandon_cut(receipt)).await?;
        }
        Ok(())
    }
}

/// Lists the changes of a batch, removals first.
fn changes(batch: &Batch) -> Vec<Change<'_>> {
    let gone = batch.gone.iter().map(Change::Forget);
    let images = batch.images.iter().map(|pending| {
        Change::Store(WorkerState {
            partition: &pending.address.partition,
            image: &pending.image,
            registration: &pending.registration,
            registered_by: pending.registered_by,
            held_blocks: pending.held_blocks,
        })
    });
    gone.chain(images).collect()
}

/// The image of a worker without blocks and sources.
const fn nothing(worker: kvasir_proto::types::WorkerId) -> WorkerImage {
    WorkerImage { worker, whole: true, sources: Vec::new(), ranks: Vec::new() }
}

/// Number of blocks, names and holes in an image.
fn blocks(image: &WorkerImage) -> usize {
    let ranks = image.ranks.iter().map(|rank| {
        let runs = rank.pages.iter().flat_map(|page| &page.runs);
        let plain: usize = runs.map(|run| run.blocks.len()).sum();
        plain + rank.names.len() + rank.holes.len()
    });
    ranks.sum()
}
