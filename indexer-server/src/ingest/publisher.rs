//! Sources that push: streams of `PublishEvents`, each an entrance to the task of its source.

use super::{
    Ingest, IngestError,
    answer::{PendingAnswer, Reply},
    follower::{Audit, Chunk, Follower, Held, Stated},
    local::Asked,
    worker::{Publishers, Speaking, Worker},
};
use crate::index::{IndexedSource, ResumedSource};
use kvasir_engine::recover::{
    HeldBytes, OutcomeCounts, Recourse, Recovery, RecoveryConfig, Resume,
};
use kvasir_index::{IndexError, SourceStatus};
use kvasir_proto::{
    convert::{Heartbeat, Hello, LocalSource, PublishedBatch},
    limits::WORKER_SOURCES_MAX,
    types::{CopyMode, Cursor, SourceState},
};
use std::{
    collections::VecDeque,
    hash::{DefaultHasher, Hash, Hasher},
    mem,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

/// Commands between streams and the task of their source; a batch is up to one message.
const COMMANDS_MAX: usize = 4;

/// One source that pushes, across its streams.
#[derive(Debug)]
pub(super) struct Publisher {
    commands: mpsc::Sender<Command>,
    shared: Arc<Shared>,
}

/// What the task of a source leaves behind, however it ends.
#[derive(Debug, Default)]
pub(super) struct Shared {
    /// Its source in the index, once something was said of it.
    source: Mutex<Option<IndexedSource>>,
    /// Whether nothing is known of it any more.
    idle: AtomicBool,
    /// Whether it waits for what it lacks.
    waits: AtomicBool,
    /// Whether it was told that it cannot be heard.
    held: AtomicBool,
}

impl Shared {
    pub(super) fn source(&self) -> Option<IndexedSource> {
        self.source.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn set_source(&self, source: Option<IndexedSource>) {
        *self.source.lock().unwrap_or_else(PoisonError::into_inner) = source;
    }

    pub(super) fn is_held(&self) -> bool {
        self.held.load(Ordering::Acquire)
    }

    pub(super) fn set_held(&self, held: bool) {
        self.held.store(held, Ordering::Release);
    }

    pub(super) fn set_waits(&self, waits: bool) {
        self.waits.store(waits, Ordering::Release);
    }

    pub(super) fn set_idle(&self, idle: bool) {
        self.idle.store(idle, Ordering::Release);
    }
}

/// What the streams of a source say to its task.
#[derive(Debug)]
pub(super) enum Command {
    Open {
        hello: Hello,
        in_order: bool,
        reply: oneshot::Sender<Result<Opened, IngestError>>,
    },
    Batch {
        stream: u64,
        batch: PublishedBatch,
        /// None if nobody waits for the answer.
        reply: Option<Reply>,
    },
    Heartbeat {
        stream: u64,
        heartbeat: Heartbeat,
    },
    /// What the stream brings is not the newest, until it has caught up.
    Behind {
        stream: u64,
    },
    CaughtUp {
        stream: u64,
    },
    /// Without a stream it is not heard, and whether for reasons that are not its own.
    Hold(bool),
    /// Blocks of it were shed, and there is room for them again.
    Heal,
    Expected {
        reply: oneshot::Sender<u64>,
    },
    Close {
        stream: u64,
    },
}

/// A stream that the task has accepted.
#[derive(Debug)]
pub(super) struct Opened {
    pub(super) stream: u64,
    pub(super) fence: CancellationToken,
    pub(super) applied: Option<Cursor>,
}

/// One open stream of a publisher. Close it when the stream ends.
#[derive(Debug)]
pub struct Session {
    ingest: Arc<Ingest>,
    worker: Arc<Worker>,
    publisher: Arc<Publisher>,
    number: u64,
    fence: CancellationToken,
}

/// A stream is open.
#[derive(Debug)]
pub struct Accepted {
    /// The stream.
    pub session: Session,
    /// Where the index stands for this incarnation.
    pub applied: Option<Cursor>,
}

impl Worker {
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
        closed.into_values().filter_map(|publisher| publisher.shared.source()).collect()
    }

    /// The recovery of one of its publishers.
    pub(super) fn recovery(
        &self,
        ingest: &Ingest,
        name: &str,
        resume: Option<&Resume>,
    ) -> Recovery<Held, Chunk> {
        let (registration, config) = (&self.registration, &ingest.config);
        let mut hasher = DefaultHasher::new();
        (&registration.partition, &registration.worker, name).hash(&mut hasher);
        let is_asked = ingest.local_indexers.is_some() && registration.local_indexer.is_some();
        let config = RecoveryConfig {
            recourse: if is_asked { Recourse::Ask } else { Recourse::Rewind },
            loss_policy: registration.loss_policy.unwrap_or(config.loss_policy),
            degraded_ttl: config.degraded_ttl,
            worker_timeout: registration.lease.unwrap_or(config.worker_timeout),
            expires_silent: registration.lease.is_some(),
            jitter_seed: hasher.finish(),
            ..RecoveryConfig::default()
        };
        Recovery::new(config, resume, ingest.origin.elapsed())
    }
}

impl Ingest {
    /// Opens a stream for a source; an earlier stream of the same source is fenced. A new
    /// incarnation clears what the one before stored; where a log brings it that keeps lives in their
    /// order (`in_order`), it is believed to begin where it says.
    ///
    /// # Errors
    /// If the worker belongs to another shard or is not registered, the hello contradicts it, its
    /// incarnation is over, or the worker has too many sources.
    pub async fn open(
        self: &Arc<Self>,
        hello: &Hello,
        in_order: bool,
    ) -> Result<Accepted, IngestError> {
        self.check_shard(&hello.address.worker)?;
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
                let (worker, limit) = (worker.id().clone(), WORKER_SOURCES_MAX);
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
        let command = Command::Open { hello: hello.clone(), in_order, reply };
        let sent = publisher.commands.send(command).await;
        let failed = || if worker.is_removed() { worker.unknown() } else { IngestError::Failed };
        sent.map_err(|_ended| failed())?;
        let Opened { stream, fence, applied } = answer.await.map_err(|_ended| failed())??;
        drop(publishers);
        self.metrics.publishers.inc();
        let ingest = Arc::clone(self);
        let session = Session { ingest, worker, publisher, number: stream, fence };
        Ok(Accepted { session, applied })
    }

    /// Takes back a publisher that a checkpoint knows: a stream of the life that it was in goes on
    /// where it stood. False if the checkpoint says nothing of a life.
    pub(super) async fn resume_publisher(
        self: &Arc<Self>,
        worker: &Arc<Worker>,
        resumed: &ResumedSource,
    ) -> bool {
        if resumed.status.applied.is_none() {
            return false;
        }
        let mut publishers = worker.publishers.lock().await;
        let (publisher, task) = self.publisher(worker, &resumed.name, Some(resumed));
        publishers.tasks.spawn(task);
        publishers.by_name.insert(resumed.name.clone(), publisher);
        true
    }

    /// A publisher and its task.
    fn publisher(
        self: &Arc<Self>,
        worker: &Arc<Worker>,
        name: &str,
        resumed: Option<&ResumedSource>,
    ) -> (Arc<Publisher>, impl Future<Output = ()> + Send + use<>) {
        let (commands, queue) = mpsc::channel(COMMANDS_MAX);
        let shared = Arc::new(Shared::default());
        let resume = resumed.map(|resumed| Resume {
            cursor: resumed.status.applied,
            degraded: resumed.status.state == SourceState::Degraded,
            past: resumed.status.past.to_vec(),
        });
        let recovery = worker.recovery(self, name, resume.as_ref());
        let past = recovery.past().collect();
        let copy_mode = resumed.map_or(CopyMode::Set, |resumed| resumed.copy_mode);
        shared.set_source(resumed.map(|resumed| resumed.source.clone()));
        let indexers = self.local_indexers.clone();
        let asked = indexers.zip(worker.registration.local_indexer.clone());
        let source = LocalSource { address: worker.address(), name: name.to_owned() };
        let block_size = worker.partition.block_size();
        let follower = Follower {
            ingest: Arc::clone(self),
            worker: Arc::clone(worker),
            name: name.to_owned(),
            shared: Arc::clone(&shared),
            recovery,
            copy_mode,
            asked: asked.map(|(indexers, url)| Asked::new(indexers, url, source, block_size)),
            turns: Arc::clone(&self.turns),
            held: HeldBytes::share(Arc::clone(&self.links.held)),
            stream: 0,
            fence: CancellationToken::new(),
            stream_life: None,
            waiting: VecDeque::new(),
            expected: None,
            round: None,
            is_torn: false,
            dump_is_incomplete: false,
            audit: Audit::default(),
            stated: Stated::EXACT,
            past,
            shown: SourceStatus::default(),
            counted: OutcomeCounts::default(),
        };
        let task = follower.run(queue, worker.cancel.clone());
        (Arc::new(Publisher { commands, shared }), task)
    }

    /// Has publishers dumped of whose worker blocks were shed, once there is room for these again. A
    /// publisher that is busy is asked the next time.
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
                let _busy = publisher.commands.try_send(Command::Heal);
            }
        }
    }

    /// Forgets publishers that have expired, removes workers whose lease has run out, and has those
    /// healed that lack blocks for which there is room again.
    ///
    /// # Errors
    /// If the server is stopping.
    pub async fn expire(self: &Arc<Self>) -> Result<(), IngestError> {
        self.turns.advance();
        let workers: Vec<_> = self.workers.iter().map(|entry| Arc::clone(&entry)).collect();
        for worker in workers {
            let deaf = self.is_deaf() && worker.registration.lease.is_some();
            if deaf {
                worker.heard(self.origin);
            } else if worker.is_open() && worker.lease_is_over(self.origin) {
                self.remove_expired(&worker).await?;
                continue;
            }
            let mut publishers = worker.publishers.lock().await;
            self.heal(&worker, &publishers);
            hold(&publishers, deaf);
            let is_idle = |at: &Publisher| at.shared.idle.load(Ordering::Acquire);
            publishers.by_name.retain(|_, publisher| !is_idle(publisher));
            while let Some(ended) = publishers.tasks.try_join_next() {
                if let Err(error) = ended {
                    tracing::error!(%error, worker = %worker.id(), "the task of a publisher failed");
                }
            }
        }
        Ok(())
    }
}

/// Tells publishers that nobody hears that this is not their doing, or not any more. One that is busy is told
/// the next time.
fn hold(publishers: &Publishers, deaf: bool) {
    for publisher in publishers.by_name.values() {
        if publisher.shared.is_held() != deaf {
            let _busy = publisher.commands.try_send(Command::Hold(deaf));
        }
    }
}

impl Session {
    /// Cancelled once another stream took over or the worker was removed.
    #[must_use]
    pub const fn fenced(&self) -> &CancellationToken {
        &self.fence
    }

    /// Says that whoever said `hello` is at the other end of a connection: nobody else takes the worker's place meanwhile,
    /// if that is the worker's agent.
    #[must_use]
    pub fn speaks(&self, hello: &Hello) -> Option<Speaking> {
        let agent = hello.local_indexer.as_ref();
        let is_agent = agent.is_some() && agent == self.worker.registration.local_indexer.as_ref();
        is_agent.then(|| Speaking::of(&self.worker))
    }

    /// Tokens per block.
    #[must_use]
    pub fn block_size(&self) -> u32 {
        self.worker.partition.block_size()
    }

    /// The sequence number wanted next, once all that was handed in is taken; any (0) before the
    /// first batch.
    pub async fn expected(&self) -> u64 {
        let (reply, answer) = oneshot::channel();
        // Fails, like the answer, if the stream is over.
        let _over = self.publisher.commands.send(Command::Expected { reply }).await;
        answer.await.unwrap_or(0)
    }

    /// Counts a batch that could not be read; it is not in the index and will be sent again.
    pub fn count_invalid(&self) {
        self.ingest.metrics.count_refusal("invalid");
    }

    /// Hands in a batch. Answers come in the order in which batches can be applied.
    pub async fn apply(&self, batch: PublishedBatch) -> PendingAnswer {
        let (reply, answer) = oneshot::channel();
        let command = Command::Batch { stream: self.number, batch, reply: Some(reply) };
        // Fails, and with it the answer, if the stream is over.
        let _over = self.publisher.commands.send(command).await;
        PendingAnswer(answer)
    }

    /// Hands in a batch whose answer nobody waits for.
    pub async fn feed(&self, batch: PublishedBatch) {
        let command = Command::Batch { stream: self.number, batch, reply: None };
        let _over = self.publisher.commands.send(command).await;
    }

    /// The publisher says that it is there, and where it stands.
    pub async fn heartbeat(&self, heartbeat: Heartbeat) {
        let command = Command::Heartbeat { stream: self.number, heartbeat };
        let _over = self.publisher.commands.send(command).await;
    }

    /// What is handed in from now on is not the newest: the log that brings it is read from further back,
    /// or cannot be reached. Until it has [caught up](Self::caught_up) the source's silence says nothing.
    pub async fn behind(&self) {
        let _over = self.publisher.commands.send(Command::Behind { stream: self.number }).await;
    }

    /// The log was read to its end.
    pub async fn caught_up(&self) {
        let _over = self.publisher.commands.send(Command::CaughtUp { stream: self.number }).await;
    }

    /// Whether the source does not wait for what it lacks.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        !self.publisher.shared.waits.load(Ordering::Acquire)
    }

    /// The stream has ended.
    pub async fn close(self) {
        self.ingest.metrics.publishers.dec();
        let _over = self.publisher.commands.send(Command::Close { stream: self.number }).await;
    }
}
