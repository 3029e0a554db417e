//! Streams of sources that push. Each stream sends commands to the task of its source.

use super::answer::PendingAnswer;
use super::follower::Follower;
use super::push_source::{Arrival, Command, Opened, PushSource, TaskState};
use super::worker::{AgentStream, Publishers, Worker};
use super::{Ingest, IngestError};
use crate::partitions::ResumedSource;
use kvasir_index::IndexError;
use kvasir_proto::convert::{Heartbeat, Hello, PublishedBatch};
use kvasir_proto::limits::{SEQUENCE_MAX, WORKER_SOURCES_MAX};
use kvasir_proto::types::Cursor;
use std::sync::Arc;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

/// One open stream of a publisher. Close it when the stream ends.
#[derive(Debug)]
pub struct SourceSession {
    ingest: Arc<Ingest>,
    worker: Arc<Worker>,
    publisher: Arc<PushSource>,
    number: u64,
    fence: CancellationToken,
}

/// An accepted stream.
#[derive(Debug)]
pub struct Accepted {
    /// The stream.
    pub session: SourceSession,
    /// The last batch of this incarnation in the index.
    pub applied: Option<Cursor>,
}

impl Ingest {
    /// Opens a stream for a source. Fences an earlier stream of the same source. A new incarnation clears the blocks of
    /// the previous one. A stream from an ordered log begins at the number in its hello, without a request to the
    /// agent. The source of a stream that is behind is never exact before the stream has caught up.
    ///
    /// # Errors
    /// If the worker belongs to another shard or is not registered, the hello contradicts it, its
    /// incarnation has ended, or the worker has too many sources.
    pub async fn open(
        self: &Arc<Self>,
        hello: &Hello,
        arrival: Arrival,
    ) -> Result<Accepted, IngestError> {
        self.check_address(&hello.address)?;
        let found = self.workers.get(&hello.address).map(|entry| Arc::clone(&entry));
        let Some(worker) = found else {
            return Err(IngestError::UnknownWorker { address: hello.address.clone() });
        };
        if worker.partition.block_size() != hello.block_size {
            return Err(IngestError::block_size(&worker.partition, hello.block_size));
        }
        if !worker.opened().await {
            return Err(worker.unknown());
        }
        let mut publishers = worker.publishers.lock().await;
        if publishers.closed {
            return Err(worker.unknown());
        }
        let sources = publishers.by_name.len() + worker.registration.endpoints.len();
        let publisher = match publishers.by_name.get(&hello.source) {
            Some(publisher) => Arc::clone(publisher),
            None if sources >= WORKER_SOURCES_MAX => {
                let worker = worker.id().clone();
                let limit = WORKER_SOURCES_MAX;
                return Err(IndexError::TooMany { worker, what: "sources", limit }.into());
            }
            None => {
                let (publisher, task) = self.publisher(&worker, &hello.source, None);
                publishers.tasks.spawn(task);
                publishers.by_name.insert(hello.source.clone(), Arc::clone(&publisher));
                publisher
            }
        };
        let (reply, answer) = oneshot::channel();
        let command = Command::Open { hello: hello.clone(), arrival, reply };
        // Without the task, the answer never comes.
        let _ended = publisher.send(command).await;
        let failed =
            |_ended| if worker.is_removed() { worker.unknown() } else { IngestError::Failed };
        let Opened { stream, fence, applied } = answer.await.map_err(failed)??;
        drop(publishers);
        self.metrics.publishers.inc();
        let ingest = Arc::clone(self);
        let session = SourceSession { ingest, worker, publisher, number: stream, fence };
        Ok(Accepted { session, applied })
    }

    /// Resumes a publisher from a checkpoint or a sibling at its cursor. Returns false if the cursor is missing or
    /// above the maximum.
    pub(super) async fn resume_publisher(
        self: &Arc<Self>,
        worker: &Arc<Worker>,
        resumed: &ResumedSource,
    ) -> bool {
        // No batch can follow a number above the maximum, which an older server accepted.
        if resumed.status.applied.is_none_or(|at| at.sequence > SEQUENCE_MAX) {
            return false;
        }
        let mut publishers = worker.publishers.lock().await;
        let (publisher, task) = self.publisher(worker, &resumed.name, Some(resumed));
        publishers.tasks.spawn(task);
        publishers.by_name.insert(resumed.name.clone(), publisher);
        true
    }

    /// Creates a publisher, and the task that applies its batches, for the caller to spawn.
    fn publisher(
        self: &Arc<Self>,
        worker: &Arc<Worker>,
        name: &str,
        resumed: Option<&ResumedSource>,
    ) -> (Arc<PushSource>, impl Future<Output = ()> + Send + use<>) {
        let shared =
            Arc::new(TaskState::with_source(resumed.map(|resumed| resumed.source.clone())));
        shared.begin_link(self.origin.elapsed());
        let (publisher, commands) = PushSource::new(Arc::clone(&shared));
        let follower = Follower::new(self, worker, name, shared, resumed);
        (Arc::new(publisher), follower.run(commands, worker.cancel.clone()))
    }

    /// Requests dumps from all publishers of a worker whose evicted blocks fit again. Returns immediately if the worker
    /// lacks a local indexer. A publisher with a full queue gets the command the next time.
    fn heal(&self, worker: &Worker, publishers: &Publishers) {
        if worker.registration.local_indexer.is_none() {
            return;
        }
        let shed = {
            let index = worker.partition.shard_of(worker.id()).read();
            let ranks = index.worker(worker.id()).into_iter().flat_map(|at| at.holders());
            ranks.map(|rank| rank.shed_blocks()).sum::<u64>()
        };
        if shed > 0 && self.partitions.budget().has_room_for(shed) {
            for publisher in publishers.by_name.values() {
                publisher.try_send(Command::Heal);
            }
        }
    }

    /// Removes expired publishers, and workers with an expired lease. Requests evicted blocks of the remaining workers
    /// if the blocks fit again.
    ///
    /// # Errors
    /// If the server is stopping.
    pub async fn expire(self: &Arc<Self>) -> Result<(), IngestError> {
        self.turns.advance();
        let workers: Vec<_> = self.workers.iter().map(|entry| Arc::clone(&entry)).collect();
        for worker in workers {
            let paused = self.is_input_paused() && worker.registration.lease.is_some();
            if paused {
                worker.mark_alive(self.origin);
            } else if worker.is_open() && worker.lease_is_over(self.origin) {
                self.remove_expired(&worker).await?;
                continue;
            }
            let mut publishers = worker.publishers.lock().await;
            self.heal(&worker, &publishers);
            self.give_up_sources(&worker, &publishers);
            pause_input(&publishers, paused);
            publishers.by_name.retain(|_, publisher| !publisher.shared().is_idle());
            while let Some(ended) = publishers.tasks.try_join_next() {
                if let Err(error) = ended {
                    tracing::error!(%error, worker = %worker.id(), "the task of a publisher failed");
                }
            }
        }
        Ok(())
    }
}

/// Notifies the tasks of publishers of paused input. A task with a full queue is notified the next time.
fn pause_input(publishers: &Publishers, paused: bool) {
    for publisher in publishers.by_name.values() {
        if publisher.shared().is_input_paused() != paused {
            publisher.try_send(Command::InputPaused(paused));
        }
    }
}

impl SourceSession {
    /// Cancelled once another stream replaces this one, or the worker is removed.
    #[must_use]
    pub const fn fenced(&self) -> &CancellationToken {
        &self.fence
    }

    /// Marks the worker's agent as connected until the result is dropped: until then, no other agent can replace it.
    /// `None` if `hello` is not from the worker's agent.
    #[must_use]
    pub fn agent_stream(&self, hello: &Hello) -> Option<AgentStream> {
        let agent = hello.local_indexer.as_ref();
        let is_agent = agent.is_some() && agent == self.worker.registration.local_indexer.as_ref();
        is_agent.then(|| AgentStream::new(&self.worker))
    }

    /// Tokens per block.
    #[must_use]
    pub fn block_size(&self) -> u32 {
        self.worker.partition.block_size()
    }

    /// The next expected sequence number, once all submitted batches are processed. 0 (any) before the first batch.
    pub async fn expected(&self) -> u64 {
        let (reply, answer) = oneshot::channel();
        // Fails, like the answer, if the stream is over.
        let _over = self.publisher.send(Command::Expected { reply }).await;
        answer.await.unwrap_or(0)
    }

    /// Counts an unreadable batch. The publisher sends it again.
    pub fn count_invalid(&self) {
        self.ingest.metrics.count_refusal("invalid");
    }

    /// Submits a batch. Replies arrive in the order in which batches can be applied.
    pub async fn apply(&self, batch: PublishedBatch) -> PendingAnswer {
        let (reply, answer) = oneshot::channel();
        let command = Command::Batch { stream: self.number, batch, reply: Some(reply) };
        // Fails, like the answer, if the stream is over.
        let _over = self.publisher.send(command).await;
        PendingAnswer(answer)
    }

    /// Submits a batch without waiting for its reply.
    pub async fn feed(&self, batch: PublishedBatch) {
        let command = Command::Batch { stream: self.number, batch, reply: None };
        let _over = self.publisher.send(command).await;
    }

    /// Processes a heartbeat of the publisher.
    pub async fn heartbeat(&self, heartbeat: Heartbeat) {
        let command = Command::Heartbeat { stream: self.number, heartbeat };
        let _over = self.publisher.send(command).await;
    }

    /// The log of the source is read from an earlier position, or is unreachable. Until
    /// [`caught_up`](Self::caught_up), the source is catching up and does not expire.
    pub async fn behind(&self) {
        let _over = self.publisher.send(Command::Behind { stream: self.number }).await;
    }

    /// The log was read to its end.
    pub async fn caught_up(&self) {
        let _over = self.publisher.send(Command::CaughtUp { stream: self.number }).await;
    }

    /// Whether the source has caught up.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        !self.publisher.shared().is_catching_up()
    }

    /// Closes the ended stream.
    pub async fn close(self) {
        self.ingest.metrics.publishers.dec();
        let _over = self.publisher.send(Command::Close { stream: self.number }).await;
    }
}
