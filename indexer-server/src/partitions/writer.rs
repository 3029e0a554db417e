use super::command::{Apply, Command, IndexBatch, Sweep, SweepKind, Work};
use super::image::{Cutting, Restoring, Taken};
use super::{Applied, IndexMetrics, IndexedSource, Pace, Partition, Partitions, Relief, Shard};
use kvasir_index::{Index, IndexError, Restore, Restored};
use kvasir_proto::types::{CopyMode, DpRank, KvEvent, SourceStatus, WorkerId};
use std::collections::VecDeque;
use std::sync::Arc;
use std::{io, process, thread};
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

/// Maximum number of queued commands per writer thread. Senders of more commands wait (backpressure).
pub const MAILBOX_COMMANDS_MAX: usize = 1_024;

/// Maximum number of commands that a writer takes from its mailbox in one batch.
const TAKE_COMMANDS_MAX: usize = 64;

/// The writer threads have ended: the server is stopping.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the server is stopping")]
pub struct WriterGone;

/// Sends changes to the writer threads. Each thread applies the changes of its shards in order. Clones share the
/// mailboxes.
#[derive(Clone)]
pub struct Writer {
    /// Mailboxes by shard number.
    mailboxes: Arc<[mpsc::Sender<Mail>]>,
}

#[expect(clippy::large_enum_variant, reason = "all but the last are commands")]
enum Mail {
    Command(Command),
    /// Stops the thread after all earlier commands. Later commands are refused.
    Stop,
}

impl std::fmt::Debug for Writer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Writer")
    }
}

impl Writer {
    /// Number of writer threads.
    #[must_use]
    pub fn threads(&self) -> usize {
        self.mailboxes.len()
    }

    async fn send(&self, shard: &Arc<Shard>, work: Work) -> Result<(), WriterGone> {
        let shard = Arc::clone(shard);
        let queued_at = Instant::now();
        let mailbox = self.mailboxes.get(shard.number()).ok_or(WriterGone)?;
        let command = Command { shard, work, queued_at };
        mailbox.send(Mail::Command(command)).await.map_err(|_gone| WriterGone)
    }

    /// Runs a short change and returns its result. The change runs under the lock, as one slice. It must do at most
    /// [`STEP_OPERATIONS_MAX`](super::STEP_OPERATIONS_MAX) block operations.
    ///
    /// # Errors
    /// If the writer is gone.
    pub async fn change<R: Send + 'static>(
        &self,
        shard: &Arc<Shard>,
        change: impl FnOnce(&mut Index) -> R + Send + 'static,
    ) -> Result<R, WriterGone> {
        let (reply, answer) = oneshot::channel();
        let brief = Box::new(move |index: &mut Index| {
            let _asker_gone = reply.send(change(index));
        });
        self.send(shard, Work::Brief(Some(brief))).await?;
        answer.await.map_err(|_gone| WriterGone)
    }

    /// Adds a source to a worker, in the worker's shard; see [`Index::add_source`].
    ///
    /// # Errors
    /// If the writer is gone; the inner error if the index refuses the source.
    pub async fn add_source(
        &self,
        partition: &Partition,
        worker: &WorkerId,
        (name, copy_mode): (&str, CopyMode),
        rank: DpRank,
    ) -> Result<Result<IndexedSource, IndexError>, WriterGone> {
        let shard = partition.shard_of(worker);
        let worker = worker.clone();
        let name = name.to_owned();
        let add = move |index: &mut Index| index.add_source(&worker, &name, rank, copy_mode);
        let added = self.change(shard, add).await?;
        Ok(added.map(|id| IndexedSource { shard: Arc::clone(shard), id }))
    }

    /// Presumes a rank of a source; see [`Index::presume_rank`].
    ///
    /// # Errors
    /// If the writer is gone.
    pub async fn presume_rank(
        &self,
        source: &IndexedSource,
        rank: DpRank,
    ) -> Result<(), WriterGone> {
        let id = source.id;
        self.change(&source.shard, move |index| index.presume_rank(id, rank)).await
    }

    /// Applies one batch of a source's events to one rank, then sets the source's status. A dump sees both changes or
    /// neither.
    ///
    /// # Errors
    /// If the writer is gone.
    pub async fn apply(
        &self,
        source: &IndexedSource,
        rank: DpRank,
        events: Vec<KvEvent>,
        status: SourceStatus,
    ) -> Result<Applied, WriterGone> {
        let (reply, answer) = oneshot::channel();
        let batch = IndexBatch { rank, events, names: Vec::new() };
        let apply = Apply::new(source.id, batch, status, Some(reply));
        self.send(&source.shard, Work::Apply(apply)).await?;
        answer.await.map_err(|_gone| WriterGone)
    }

    /// Like [`apply`](Self::apply), without waiting for the outcome.
    ///
    /// # Errors
    /// If the writer is gone.
    pub async fn submit(
        &self,
        source: &IndexedSource,
        batch: IndexBatch,
        status: SourceStatus,
    ) -> Result<(), WriterGone> {
        let apply = Apply::new(source.id, batch, status, None);
        self.send(&source.shard, Work::Apply(apply)).await
    }

    /// Sets a source's status, after all earlier submitted changes.
    ///
    /// # Errors
    /// If the writer is gone.
    pub async fn set_status(
        &self,
        source: &IndexedSource,
        status: SourceStatus,
    ) -> Result<(), WriterGone> {
        let id = source.id;
        let brief = Box::new(move |index: &mut Index| index.set_status(id, status));
        self.send(&source.shard, Work::Brief(Some(brief))).await
    }

    /// Like [`set_status`](Self::set_status), but waits until readers see the status.
    ///
    /// # Errors
    /// If the writer is gone.
    pub async fn show_status(
        &self,
        source: &IndexedSource,
        status: SourceStatus,
    ) -> Result<(), WriterGone> {
        let id = source.id;
        self.change(&source.shard, move |index| index.set_status(id, status)).await
    }

    /// Marks all blocks that a source stored as suspect, and sets the source's status. An image has both changes or
    /// neither.
    ///
    /// # Errors
    /// If the writer is gone.
    pub async fn mark_suspect(
        &self,
        source: &IndexedSource,
        status: SourceStatus,
    ) -> Result<(), WriterGone> {
        let id = source.id;
        let brief = Box::new(move |index: &mut Index| {
            index.mark_suspect(id);
            index.set_status(id, status);
        });
        self.send(&source.shard, Work::Brief(Some(brief))).await
    }

    /// Marks a source as partial until it is cleared: blocks that it stored are missing from the index.
    ///
    /// # Errors
    /// If the writer is gone.
    pub async fn mark_incomplete(&self, source: &IndexedSource) -> Result<(), WriterGone> {
        let id = source.id;
        let brief = Box::new(move |index: &mut Index| index.mark_incomplete(id));
        self.send(&source.shard, Work::Brief(Some(brief))).await
    }

    /// Drops the still suspect blocks of a source, in slices.
    ///
    /// # Errors
    /// If the writer is gone.
    pub async fn drop_suspects(&self, source: &IndexedSource) -> Result<(), WriterGone> {
        self.sweep(source, SweepKind::Suspects, None).await
    }

    /// Drops all blocks that a source stored, in slices, then sets the source's status. An image has both changes or
    /// neither.
    ///
    /// # Errors
    /// If the writer is gone.
    pub async fn clear(
        &self,
        source: &IndexedSource,
        status: SourceStatus,
    ) -> Result<(), WriterGone> {
        self.sweep(source, SweepKind::All(status), None).await
    }

    /// Drops all blocks that a source stored, in slices, then the source. Waits for the end. Returns the number of
    /// (name, tier) pairs of the source.
    ///
    /// # Errors
    /// If the writer is gone.
    pub async fn remove_source(&self, source: IndexedSource) -> Result<u64, WriterGone> {
        let (reply, answer) = oneshot::channel();
        self.sweep(&source, SweepKind::Source, Some(reply)).await?;
        answer.await.map_err(|_gone| WriterGone)
    }

    /// Cuts an image of a worker: the changes since its last image, or the complete worker. Await the call to its end.
    /// The next image lacks the changes in a dropped image, unless [`Index::abandon_cut`] receives the receipt.
    ///
    /// # Errors
    /// If the writer is gone; the inner error if the worker is not in the index.
    pub async fn cut(
        &self,
        shard: &Arc<Shard>,
        worker: WorkerId,
        whole: bool,
    ) -> Result<Result<Taken, IndexError>, WriterGone> {
        let (reply, answer) = oneshot::channel();
        self.send(shard, Work::Cut(Cutting::new(worker, whole, reply))).await?;
        answer.await.map_err(|_gone| WriterGone)
    }

    /// Restores a worker that has no blocks in the index.
    ///
    /// # Errors
    /// If the writer is gone; the inner error if the index refuses a source.
    pub async fn restore(
        &self,
        shard: &Arc<Shard>,
        restore: Restore,
    ) -> Result<Result<Restored, IndexError>, WriterGone> {
        let (reply, answer) = oneshot::channel();
        let restoring = Box::new(Restoring::new(restore, reply));
        self.send(shard, Work::Restore(restoring)).await?;
        answer.await.map_err(|_gone| WriterGone)
    }

    /// Queues the removal of a source's blocks. `reply` receives the number of removed blocks.
    async fn sweep(
        &self,
        source: &IndexedSource,
        kind: SweepKind,
        reply: Option<oneshot::Sender<u64>>,
    ) -> Result<(), WriterGone> {
        let sweep = Sweep { source: source.id, kind, removed: 0, begun: false, error: None, reply };
        self.send(&source.shard, Work::Sweep(sweep)).await
    }
}

/// Handle to stop the writer threads.
#[derive(Debug)]
pub struct WriterThreads {
    writer: Writer,
    done: Vec<oneshot::Receiver<()>>,
}

impl WriterThreads {
    /// Stops the threads after all commands so far, and waits for their end. Later commands fail with [`WriterGone`].
    pub async fn stop(self) {
        for mailbox in &*self.writer.mailboxes {
            // Fails if the thread is gone already.
            let _gone = mailbox.send(Mail::Stop).await;
        }
        for done in self.done {
            // Ends with the thread, by a reply or by a drop of the sender.
            let _ended = done.await;
        }
    }
}

/// Aborts the process if a writer panics: readers must never see a half-changed index.
struct AbortOnPanic;

impl Drop for AbortOnPanic {
    fn drop(&mut self) {
        if thread::panicking() {
            tracing::error!("a writer thread panicked: the process ends");
            process::abort();
        }
    }
}

/// Starts a writer thread for each shard of the partitions of this process.
///
/// # Errors
/// If a thread cannot be started.
pub fn start_writers(
    partitions: &Arc<Partitions>,
    metrics: &IndexMetrics,
) -> io::Result<(Writer, WriterThreads)> {
    let shards = partitions.config().shards;
    let mut mailboxes = Vec::with_capacity(shards.get());
    let mut done = Vec::with_capacity(shards.get());
    for number in 0..shards.get() {
        let (sender, mailbox) = mpsc::channel(MAILBOX_COMMANDS_MAX);
        let (done_tx, done_rx) = oneshot::channel();
        let relief = Relief::new(Arc::clone(partitions));
        let metrics = metrics.clone();
        thread::Builder::new().name(format!("writer-{number}")).spawn(move || {
            let abort = AbortOnPanic;
            run(mailbox, relief, &metrics);
            drop(abort);
            let _nobody_joins = done_tx.send(());
        })?;
        mailboxes.push(sender);
        done.push(done_rx);
    }
    tracing::info!(shards, "the index has a writer thread for each shard");
    let writer = Writer { mailboxes: mailboxes.into() };
    Ok((writer.clone(), WriterThreads { writer, done }))
}

/// Executes commands in order of arrival until the mailbox is closed. Before each critical section, evicts blocks if
/// the memory budget is used up.
fn run(mut mailbox: mpsc::Receiver<Mail>, mut relief: Relief, metrics: &IndexMetrics) {
    let mut taken = Vec::with_capacity(TAKE_COMMANDS_MAX);
    let mut queue = VecDeque::with_capacity(TAKE_COMMANDS_MAX);
    let mut finished = Vec::with_capacity(TAKE_COMMANDS_MAX);
    let mut pace = Pace::default();
    while mailbox.blocking_recv_many(&mut taken, TAKE_COMMANDS_MAX) > 0 {
        let now = Instant::now();
        for mail in taken.drain(..) {
            match mail {
                Mail::Command(command) => {
                    let wait = now.saturating_duration_since(command.queued_at);
                    metrics.mailbox_wait.observe(wait.as_secs_f64());
                    queue.push_back(command);
                }
                Mail::Stop => mailbox.close(),
            }
        }
        while let Some(first) = queue.front() {
            let shard = Arc::clone(&first.shard);
            relief.make_room(&shard, |held| metrics.hold.observe(held.as_secs_f64()));
            execute_section(&shard, &mut pace, &mut queue, &mut finished, metrics);
            finished.drain(..).for_each(|work: Work| work.finish(metrics));
        }
    }
}

/// Executes queued commands for one shard, in one critical section of its lock. Moves completed commands to `finished`.
fn execute_section(
    shard: &Arc<Shard>,
    pace: &mut Pace,
    queue: &mut VecDeque<Command>,
    finished: &mut Vec<Work>,
    metrics: &IndexMetrics,
) {
    let held = shard.write(|index| {
        let begin = Instant::now();
        pace.begin();
        while let Some(command) = queue.front_mut().filter(|at| Arc::ptr_eq(&at.shard, shard)) {
            let mut budget = pace.step();
            let done = command.work.step(index, &mut budget);
            let may_continue = pace.may_continue(pace.step() - budget, shard.is_awaited());
            if done {
                finished.extend(queue.pop_front().map(|command| command.work));
            } else if !may_continue {
                command.work.pause(index);
            }
            if !may_continue {
                break;
            }
        }
        begin.elapsed()
    });
    metrics.hold.observe(held.as_secs_f64());
}
