use super::{
    Applied, HOLD_OPERATIONS_MAX, IndexMetrics, Partition,
    command::{Apply, Command, Sweep, SweepKind, Work},
};
use kvasir_index::{Index, SourceId, SourceStatus};
use kvasir_proto::types::{DpRank, KvEvent};
use std::{collections::VecDeque, io, process, sync::Arc, thread};
use tokio::{
    sync::{mpsc, oneshot},
    time::Instant,
};

/// Commands that wait for the writer at most; whoever sends more waits.
pub const MAILBOX_COMMANDS_MAX: usize = 1_024;

/// Commands taken from the mailbox at once.
const TAKE_COMMANDS_MAX: usize = 64;

/// The writer thread has ended: the server is stopping.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the server is stopping")]
pub struct WriterGone;

/// Hands changes to the writer thread, which makes them in order. Clones share its mailbox.
#[derive(Clone)]
pub struct Writer {
    mailbox: mpsc::Sender<Mail>,
}

#[expect(clippy::large_enum_variant, reason = "all but the last are commands")]
enum Mail {
    Command(Command),
    /// No more will be taken; what came before is carried out.
    Stop,
}

impl std::fmt::Debug for Writer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Writer")
    }
}

impl Writer {
    async fn send(&self, partition: &Arc<Partition>, work: Work) -> Result<(), WriterGone> {
        let (partition, queued_at) = (Arc::clone(partition), Instant::now());
        let command = Command { partition, work, queued_at };
        self.mailbox.send(Mail::Command(command)).await.map_err(|_gone| WriterGone)
    }

    /// Makes a short change and returns what it returns. It runs under the lock: it must do no
    /// more than [`HOLD_OPERATIONS_MAX`] block operations.
    ///
    /// # Errors
    /// If the writer is gone.
    pub async fn change<R: Send + 'static>(
        &self,
        partition: &Arc<Partition>,
        change: impl FnOnce(&mut Index) -> R + Send + 'static,
    ) -> Result<R, WriterGone> {
        let (reply, answer) = oneshot::channel();
        let brief = Box::new(move |index: &mut Index| {
            let _asker_gone = reply.send(change(index));
        });
        self.send(partition, Work::Brief(Some(brief))).await?;
        answer.await.map_err(|_gone| WriterGone)
    }

    /// Applies one batch of a source's events to one rank, then sets the source's status: a dump
    /// sees both or neither.
    ///
    /// # Errors
    /// If the writer is gone.
    pub async fn apply(
        &self,
        partition: &Arc<Partition>,
        to: (SourceId, DpRank),
        events: Vec<KvEvent>,
        status: SourceStatus,
    ) -> Result<Applied, WriterGone> {
        let (reply, answer) = oneshot::channel();
        let apply = Apply::new(to, events, status, Some(reply));
        self.send(partition, Work::Apply(apply)).await?;
        answer.await.map_err(|_gone| WriterGone)
    }

    /// [`apply`](Self::apply) without waiting for the outcome.
    ///
    /// # Errors
    /// If the writer is gone.
    pub async fn submit(
        &self,
        partition: &Arc<Partition>,
        to: (SourceId, DpRank),
        events: Vec<KvEvent>,
        status: SourceStatus,
    ) -> Result<(), WriterGone> {
        let apply = Apply::new(to, events, status, None);
        self.send(partition, Work::Apply(apply)).await
    }

    /// Sets a source's status, after all that was handed in before.
    ///
    /// # Errors
    /// If the writer is gone.
    pub async fn set_status(
        &self,
        partition: &Arc<Partition>,
        source: SourceId,
        status: SourceStatus,
    ) -> Result<(), WriterGone> {
        let brief = Box::new(move |index: &mut Index| index.set_status(source, status));
        self.send(partition, Work::Brief(Some(brief))).await
    }

    /// Events of a source were lost: marks all that it stored as doubtful.
    ///
    /// # Errors
    /// If the writer is gone.
    pub async fn mark_suspect(
        &self,
        partition: &Arc<Partition>,
        source: SourceId,
    ) -> Result<(), WriterGone> {
        let brief = Box::new(move |index: &mut Index| index.mark_suspect(source));
        self.send(partition, Work::Brief(Some(brief))).await
    }

    /// Blocks that a source stored are not held: marks it as partial until it is cleared.
    ///
    /// # Errors
    /// If the writer is gone.
    pub async fn mark_incomplete(
        &self,
        partition: &Arc<Partition>,
        source: SourceId,
    ) -> Result<(), WriterGone> {
        let brief = Box::new(move |index: &mut Index| index.mark_incomplete(source));
        self.send(partition, Work::Brief(Some(brief))).await
    }

    /// Drops what is still doubtful of a source, in steps.
    ///
    /// # Errors
    /// If the writer is gone.
    pub async fn drop_suspects(
        &self,
        partition: &Arc<Partition>,
        source: SourceId,
    ) -> Result<(), WriterGone> {
        self.sweep(partition, source, SweepKind::Suspects, None).await
    }

    /// Drops all that a source stored, in steps.
    ///
    /// # Errors
    /// If the writer is gone.
    pub async fn clear(
        &self,
        partition: &Arc<Partition>,
        source: SourceId,
    ) -> Result<(), WriterGone> {
        self.sweep(partition, source, SweepKind::All, None).await
    }

    /// Drops all that a source stored, in steps, then the source; waits for it. Returns how many
    /// (name, tier) the source held.
    ///
    /// # Errors
    /// If the writer is gone.
    pub async fn remove_source(
        &self,
        partition: &Arc<Partition>,
        source: SourceId,
    ) -> Result<u64, WriterGone> {
        let (reply, answer) = oneshot::channel();
        self.sweep(partition, source, SweepKind::Source, Some(reply)).await?;
        answer.await.map_err(|_gone| WriterGone)
    }

    async fn sweep(
        &self,
        partition: &Arc<Partition>,
        source: SourceId,
        kind: SweepKind,
        reply: Option<oneshot::Sender<u64>>,
    ) -> Result<(), WriterGone> {
        let sweep = Sweep { source, kind, removed: 0, error: None, reply };
        self.send(partition, Work::Sweep(sweep)).await
    }
}

/// The writer thread, to be stopped.
#[derive(Debug)]
pub struct WriterThread {
    writer: Writer,
    done: oneshot::Receiver<()>,
}

impl WriterThread {
    /// Lets the thread write all that it was given, and waits for its end. Whoever hands in more
    /// is told that it is gone.
    pub async fn stop(self) {
        // Fails if the thread is gone already.
        let _gone = self.writer.mailbox.send(Mail::Stop).await;
        // Ends with the thread, by answer or by drop.
        let _ended = self.done.await;
    }
}

/// A writer that panics leaves a half-changed index behind: nobody may read that.
struct AbortOnPanic;

impl Drop for AbortOnPanic {
    fn drop(&mut self) {
        if thread::panicking() {
            tracing::error!("the writer thread panicked: the process ends");
            process::abort();
        }
    }
}

/// Starts the writer thread of the one shard of this process.
///
/// # Errors
/// If the thread cannot be started.
pub fn start_writer(metrics: IndexMetrics) -> io::Result<(Writer, WriterThread)> {
    let (sender, mailbox) = mpsc::channel(MAILBOX_COMMANDS_MAX);
    let (done_tx, done) = oneshot::channel();
    thread::Builder::new().name("writer-0".to_owned()).spawn(move || {
        let abort = AbortOnPanic;
        run(mailbox, &metrics);
        drop(abort);
        let _nobody_joins = done_tx.send(());
    })?;
    let writer = Writer { mailbox: sender };
    Ok((writer.clone(), WriterThread { writer, done }))
}

fn run(mut mailbox: mpsc::Receiver<Mail>, metrics: &IndexMetrics) {
    let mut taken = Vec::with_capacity(TAKE_COMMANDS_MAX);
    let mut queue = VecDeque::with_capacity(TAKE_COMMANDS_MAX);
    let mut finished = Vec::with_capacity(TAKE_COMMANDS_MAX);
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
            let partition = Arc::clone(&first.partition);
            hold(&partition, &mut queue, &mut finished, metrics);
            finished.drain(..).for_each(|work: Work| work.finish(metrics));
        }
    }
}

/// Carries out commands for one partition under one hold of its lock.
fn hold(
    partition: &Arc<Partition>,
    queue: &mut VecDeque<Command>,
    finished: &mut Vec<Work>,
    metrics: &IndexMetrics,
) {
    let held = partition.write(|index| {
        let begin = Instant::now();
        let mut budget = HOLD_OPERATIONS_MAX;
        while budget > 0 {
            let front = queue.front_mut();
            let Some(command) = front.filter(|at| Arc::ptr_eq(&at.partition, partition)) else {
                break;
            };
            if !command.work.step(index, &mut budget) {
                break;
            }
            finished.extend(queue.pop_front().map(|command| command.work));
        }
        begin.elapsed()
    });
    metrics.hold.observe(held.as_secs_f64());
}
