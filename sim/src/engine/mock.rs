//! The running mock engine: a task that owns scheduler and sockets, and a handle to it.

use super::publisher::{Endpoints, EpochForm, Publisher, PublisherConfig};
use super::scheduler::{Completion, MAIN_GROUP, Prompt, Scheduler, SchedulerConfig, TooLarge};
use super::wire::{BatchStyle, EngineEvent, HashForm, WireForm};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap};
use std::time::{SystemTime, UNIX_EPOCH};
use thiserror::Error;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;
use zeromq::ZmqError;

/// Maximum number of queued commands for the engine's task.
const COMMANDS_MAX: usize = 1_024;
/// Timestamp of the first batch before any restart, in seconds.
const TIME_START_SECS: u64 = 1_700_000_000;
/// Advance of the timestamps at a restart, in seconds.
const TIME_RESTART_SECS: f64 = 1_000_000.0;
/// Advance of the timestamp per step, in seconds.
const TIME_STEP_SECS: f64 = 0.01;

/// Configuration of an engine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EngineConfig {
    /// Tokens per block.
    pub block_size: usize,
    /// Physical blocks, shared by all groups.
    pub capacity_blocks: usize,
    /// Window of a second, sliding-window group in tokens; `None` for no second group.
    pub sliding_window: Option<usize>,
    /// Whether the sliding-window group has number 0 and the main group number 1.
    pub window_first: bool,
    /// Seed of block names. Engines with equal seeds give equal blocks equal names.
    pub name_seed: u64,
    /// Wire format of events.
    pub form: WireForm,
    /// Wire format of names.
    pub hashes: HashForm,
    /// ZMQ topic of live batches.
    pub topic: String,
    /// Whether and how batches state the engine's incarnation.
    pub epoch: EpochForm,
    /// Number of batches retained for replays.
    pub buffer_batches: usize,
    /// Whether removals state how many copies remain.
    pub copy_counts: bool,
    /// Data-parallel rank in batches.
    pub dp_rank: u32,
    /// Timestamp of the first batch before any restart, in seconds since 1970.
    pub time_start_secs: u64,
    /// Number of earlier restarts of this engine. Each restart begins with a later timestamp.
    pub restarts: u32,
}

impl Default for EngineConfig {
    fn default() -> Self {
        Self {
            block_size: 16,
            capacity_blocks: 4_096,
            sliding_window: None,
            window_first: false,
            name_seed: 0,
            form: WireForm::default(),
            hashes: HashForm::default(),
            topic: String::new(),
            epoch: EpochForm::default(),
            buffer_batches: 10_000,
            copy_counts: false,
            dp_rank: 0,
            time_start_secs: TIME_START_SECS,
            restarts: 0,
        }
    }
}

impl EngineConfig {
    /// Uses timestamps of today. The default timestamps of 2023 make tests repeatable, but all batches old.
    ///
    /// # Panics
    /// If the clock shows a time before 1970.
    #[expect(clippy::disallowed_methods, reason = "for tests of what depends on the time of day")]
    #[must_use]
    pub fn today(self) -> Self {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("a clock that was set");
        Self { time_start_secs: now.as_secs(), ..self }
    }

    /// First timestamp after `restarts` restarts. They are far apart, so that no batch equals one from before a
    /// restart.
    #[expect(clippy::cast_precision_loss, reason = "seconds since 1970 are exact")]
    pub(super) fn time_start(&self, restarts: u32) -> f64 {
        self.time_start_secs as f64 + f64::from(restarts) * TIME_RESTART_SECS
    }

    /// Wire format and fixed fields of the engine's batches.
    pub(super) const fn style(&self) -> BatchStyle {
        BatchStyle {
            form: self.form,
            hashes: self.hashes,
            block_size: self.block_size,
            sliding_window: self.sliding_window,
            window_first: self.window_first,
            dp_rank: self.dp_rank,
            copy_counts: self.copy_counts,
        }
    }

    /// Configuration of the engine's publisher.
    pub(super) fn publisher(&self) -> PublisherConfig {
        PublisherConfig {
            topic: self.topic.clone(),
            buffer_batches: self.buffer_batches,
            form: self.form,
            epoch: self.epoch,
        }
    }
}

/// Why an engine could not execute a command.
#[derive(Debug, Error)]
pub enum EngineError {
    /// The request does not fit into the pool.
    #[error(transparent)]
    TooLarge(#[from] TooLarge),
    /// A socket could not be bound.
    #[error("failed to bind the engine's sockets: {0}")]
    Bind(#[from] ZmqError),
    /// The engine stopped, or was restarted during the request.
    #[error("the engine is gone")]
    Gone,
}

/// Main-group blocks and last batch of an engine: the ground truth that the index must match.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Truth {
    /// Names with their numbers of physical copies.
    pub copies: BTreeMap<u64, u32>,
    /// Number of the last batch; `None` before the first.
    pub last_sequence: Option<u64>,
}

type Reply<T> = oneshot::Sender<T>;

enum Command {
    Run(Prompt, Reply<Result<Completion, TooLarge>>),
    Reset(Reply<bool>),
    DropNext(u64, Reply<()>),
    Restart(Reply<Result<(), ZmqError>>),
    Truth(Reply<Truth>),
}

/// Handle to a running engine; dropping it stops the engine.
#[derive(Debug)]
pub struct MockEngine {
    commands: mpsc::Sender<Command>,
    endpoints: Endpoints,
    tasks: JoinSet<()>,
}

// === impl MockEngine ===

impl MockEngine {
    /// Starts an engine on free ports of the loopback interface.
    ///
    /// # Errors
    /// If a socket cannot be bound.
    pub async fn start(config: EngineConfig) -> Result<Self, EngineError> {
        Self::start_at(config, &Endpoints::any()).await
    }

    /// Starts an engine that listens on `endpoints`.
    ///
    /// # Errors
    /// If a socket cannot be bound.
    pub async fn start_at(
        config: EngineConfig,
        endpoints: &Endpoints,
    ) -> Result<Self, EngineError> {
        let engine = Actor::start(config, endpoints).await?;
        let endpoints = engine.publisher.endpoints().clone();
        let (commands, received) = mpsc::channel(COMMANDS_MAX);
        let mut tasks = JoinSet::new();
        tasks.spawn(engine.run(received));
        Ok(Self { commands, endpoints, tasks })
    }

    /// Address of the PUB socket, `tcp://host:port`; unchanged by a restart.
    #[must_use]
    pub fn endpoint(&self) -> &str {
        &self.endpoints.live
    }

    /// Address of the replay socket, `tcp://host:port`; unchanged by a restart.
    #[must_use]
    pub fn replay_endpoint(&self) -> &str {
        &self.endpoints.replay
    }

    /// Runs a request to its end. When it returns, all its events are published.
    ///
    /// # Errors
    /// If the request is too large, or the engine is stopped or restarted meanwhile.
    pub async fn run(&self, prompt: Prompt) -> Result<Completion, EngineError> {
        Ok(self.ask(|reply| Command::Run(prompt, reply)).await??)
    }

    /// Empties the prefix cache. Returns false, without effect, while a request runs.
    ///
    /// # Errors
    /// If the engine has stopped.
    pub async fn reset(&self) -> Result<bool, EngineError> {
        self.ask(Command::Reset).await
    }

    /// Numbers and buffers the next `batches` for replays, without sending them.
    ///
    /// # Errors
    /// If the engine has stopped.
    pub async fn drop_next(&self, batches: u64) -> Result<(), EngineError> {
        self.ask(|reply| Command::DropNext(batches, reply)).await
    }

    /// Kills the engine and restarts it on the same ports, with an empty pool and buffer and numbers from 0. Running
    /// requests are lost.
    ///
    /// # Errors
    /// If the engine has stopped, or its ports were taken meanwhile.
    pub async fn restart(&self) -> Result<(), EngineError> {
        Ok(self.ask(Command::Restart).await??)
    }

    /// The engine's current blocks and last batch.
    ///
    /// # Errors
    /// If the engine has stopped.
    pub async fn truth(&self) -> Result<Truth, EngineError> {
        self.ask(Command::Truth).await
    }

    /// Stops the engine and waits until its sockets are closed.
    pub async fn stop(mut self) {
        drop(self.commands);
        while self.tasks.join_next().await.is_some() {}
    }

    async fn ask<T>(&self, command: impl FnOnce(Reply<T>) -> Command) -> Result<T, EngineError> {
        let (reply, answer) = oneshot::channel();
        self.commands.send(command(reply)).await.map_err(|_| EngineError::Gone)?;
        answer.await.map_err(|_| EngineError::Gone)
    }
}

/// State of the task.
struct Actor {
    config: EngineConfig,
    scheduler: Scheduler,
    publisher: Publisher,
    replies: HashMap<u64, Reply<Result<Completion, TooLarge>>>,
    next_request: u64,
    time: f64,
    restarts: u32,
}

// === impl Actor ===

impl Actor {
    async fn start(config: EngineConfig, endpoints: &Endpoints) -> Result<Self, ZmqError> {
        let publisher = Publisher::bind(config.publisher(), endpoints).await?;
        Ok(Self {
            scheduler: scheduler(&config),
            publisher,
            replies: HashMap::new(),
            next_request: 0,
            time: config.time_start(config.restarts),
            restarts: config.restarts,
            config,
        })
    }

    async fn run(mut self, mut commands: mpsc::Receiver<Command>) {
        'running: loop {
            if self.scheduler.is_idle() {
                let Some(command) = commands.recv().await else {
                    break;
                };
                self.handle(command).await;
            }
            loop {
                match commands.try_recv() {
                    Ok(command) => self.handle(command).await,
                    Err(mpsc::error::TryRecvError::Empty) => break,
                    Err(mpsc::error::TryRecvError::Disconnected) => break 'running,
                }
            }
            let step = self.scheduler.step();
            self.publish(&step.events).await;
            for (id, completion) in step.finished {
                if let Some(reply) = self.replies.remove(&id) {
                    // The caller may have stopped waiting.
                    let _ = reply.send(Ok(completion));
                }
            }
            // A step takes no time: yield to other tasks of the process.
            tokio::task::yield_now().await;
        }
        self.publisher.close().await;
    }

    /// Executes a command and sends its reply. A caller that has stopped waiting misses the reply.
    async fn handle(&mut self, command: Command) {
        match command {
            Command::Run(prompt, reply) => self.submit(prompt, reply),
            Command::Reset(reply) => {
                let done = self.scheduler.reset();
                if done {
                    self.publish(&[EngineEvent::Cleared]).await;
                }
                let _ = reply.send(done);
            }
            Command::DropNext(batches, reply) => {
                self.publisher.drop_next(batches);
                let _ = reply.send(());
            }
            Command::Restart(reply) => {
                let _ = reply.send(self.restart().await);
            }
            Command::Truth(reply) => {
                let copies = self.scheduler.contents(MAIN_GROUP);
                let last_sequence = self.publisher.last_sequence();
                let _ = reply.send(Truth { copies, last_sequence });
            }
        }
    }

    fn submit(&mut self, prompt: Prompt, reply: Reply<Result<Completion, TooLarge>>) {
        let id = self.next_request;
        self.next_request += 1;
        match self.scheduler.submit(id, prompt) {
            Ok(()) => {
                self.replies.insert(id, reply);
            }
            Err(error) => {
                let _ = reply.send(Err(error));
            }
        }
    }

    async fn publish(&mut self, events: &[EngineEvent]) {
        self.time += TIME_STEP_SECS;
        if events.is_empty() {
            return;
        }
        let payload = self.config.style().encode(self.time, events);
        // Errors of a PUB socket are ignored: a batch that was not sent can be replayed.
        drop(self.publisher.publish(payload).await);
    }

    async fn restart(&mut self) -> Result<(), ZmqError> {
        self.scheduler = scheduler(&self.config);
        // Callers that wait for a lost request receive the error that the engine has stopped.
        self.replies.clear();
        self.restarts += 1;
        self.time = self.config.time_start(self.restarts);
        self.publisher.restart().await
    }
}

fn scheduler(config: &EngineConfig) -> Scheduler {
    Scheduler::new(SchedulerConfig {
        block_size: config.block_size,
        capacity_blocks: config.capacity_blocks,
        sliding_window: config.sliding_window,
        name_seed: config.name_seed,
    })
}
