//! The handle of an engine in real time.

use super::actor::{Actor, Command, Request};
use super::config::LiveConfig;
use super::metrics::LiveMetrics;
use super::request::{Progress, Submission};
use super::ticket::Ticket;
use crate::engine::mock::Truth;
use crate::engine::publisher::{Endpoints, Publisher};
use crate::engine::scheduler::{TooLarge, block_names};
use crate::engine::timed::Job;
use std::sync::Arc;
use thiserror::Error;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use xxhash_rust::xxh3::xxh3_64_with_seed;
use zeromq::ZmqError;

/// Maximum number of queued commands for the engine's task.
const COMMANDS_MAX: usize = 1_024;

/// Why an engine did not start.
#[derive(Debug, Error)]
pub enum LiveError {
    /// The configuration is invalid.
    #[error("the engine cannot be as configured: {0}")]
    Config(&'static str),
    /// A socket could not be bound.
    #[error("failed to bind the engine's sockets: {0}")]
    Bind(#[from] ZmqError),
}

/// Why an engine rejects a request.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Refusal {
    /// The prompt or the answer is empty.
    #[error("a request needs a token in its prompt and one in its answer")]
    Empty,
    /// The request does not fit into the cache.
    #[error(transparent)]
    TooLarge(#[from] TooLarge),
    /// The maximum number of requests is waiting or running.
    #[error("the engine has {0} requests, which is its limit")]
    Busy(usize),
    /// The engine has stopped.
    #[error("the engine is gone")]
    Gone,
}

/// Handle of a running engine; dropping it stops the engine.
#[derive(Debug)]
pub struct LiveEngine {
    config: LiveConfig,
    commands: mpsc::Sender<Command>,
    endpoints: Endpoints,
    metrics: Arc<LiveMetrics>,
    halt: CancellationToken,
    tasks: JoinSet<()>,
}

// === impl LiveEngine ===

impl LiveEngine {
    /// Starts an engine that publishes its events at `endpoints`.
    ///
    /// # Errors
    /// If the configuration is invalid, or a socket cannot be bound.
    pub async fn start(config: LiveConfig, endpoints: &Endpoints) -> Result<Self, LiveError> {
        if let Some(problem) = config.problem() {
            return Err(LiveError::Config(problem));
        }
        let publisher = Publisher::bind(config.engine.publisher(), endpoints).await?;
        let endpoints = publisher.endpoints().clone();
        let metrics = Arc::new(LiveMetrics::new(&config));
        let actor = Actor::new(config.clone(), publisher, Arc::clone(&metrics));
        let (commands, received) = mpsc::channel(COMMANDS_MAX);
        let halt = CancellationToken::new();
        let mut tasks = JoinSet::new();
        tasks.spawn(actor.run(received, halt.clone()));
        Ok(Self { config, commands, endpoints, metrics, halt, tasks })
    }

    /// Configuration of the engine.
    #[must_use]
    pub const fn config(&self) -> &LiveConfig {
        &self.config
    }

    /// Endpoints at which the engine publishes its events.
    #[must_use]
    pub const fn endpoints(&self) -> &Endpoints {
        &self.endpoints
    }

    /// Current metrics, in the OpenMetrics text format.
    ///
    /// # Errors
    /// If the engine has stopped.
    pub async fn metrics(&self) -> Result<String, Refusal> {
        self.ask(Command::Measure).await?;
        Ok(self.metrics.encode().unwrap_or_default())
    }

    /// Queues a request.
    ///
    /// # Errors
    /// If the engine rejects the request.
    pub async fn submit(&self, submission: Submission) -> Result<Ticket, Refusal> {
        let job = self.job(&submission)?;
        let (progress, seen) = watch::channel(Progress::default());
        let request = Box::new(Request { submission, job, progress });
        let taken = self.ask(|reply| Command::Submit(request, reply)).await?;
        let id = taken.ok_or(Refusal::Busy(self.config.requests_max))?;
        Ok(Ticket { id, progress: seen, commands: self.commands.downgrade() })
    }

    /// Converts a request to counts and block names.
    fn job(&self, submission: &Submission) -> Result<Job, Refusal> {
        let prompt_tokens = submission.prompt.len();
        let answer_tokens = submission.answer.len();
        if prompt_tokens == 0 || answer_tokens == 0 {
            return Err(Refusal::Empty);
        }
        let block_size = self.config.engine.block_size;
        let capacity = self.config.engine.capacity_blocks;
        let needed = (prompt_tokens + answer_tokens - 1).div_ceil(block_size);
        if needed > capacity {
            return Err(TooLarge { needed, capacity }.into());
        }
        let mut tokens = submission.prompt.clone();
        tokens.extend(submission.answer.iter().take(answer_tokens - 1));
        let seed = self.config.engine.name_seed;
        // Prompts with different salts share no names.
        let seed =
            submission.salt.as_ref().map_or(seed, |salt| xxh3_64_with_seed(salt.as_bytes(), seed));
        let names = block_names(&tokens, block_size, seed);
        Ok(Job { arrival: 0, prompt_tokens, answer_tokens, names })
    }

    /// The engine's cached blocks and last published batch.
    ///
    /// # Errors
    /// If the engine has stopped.
    pub async fn truth(&self) -> Result<Truth, Refusal> {
        self.ask(Command::Truth).await
    }

    /// Empties the prefix cache. Returns false, without effect, while blocks are in use.
    ///
    /// # Errors
    /// If the engine has stopped.
    pub async fn reset(&self) -> Result<bool, Refusal> {
        self.ask(Command::Reset).await
    }

    /// The prompt of an ended request whose blocks are kept; `None` if they are no longer kept. Restarts the time for
    /// which they are kept.
    ///
    /// # Errors
    /// If the engine has stopped.
    pub async fn held(&self, id: usize) -> Result<Option<Arc<[u32]>>, Refusal> {
        self.ask(|reply| Command::Held(id, reply)).await
    }

    /// Releases the kept blocks of an ended request, which stay cached. Returns false if no blocks were kept.
    ///
    /// # Errors
    /// If the engine has stopped.
    pub async fn release(&self, id: usize) -> Result<bool, Refusal> {
        self.ask(|reply| Command::Release(id, reply)).await
    }

    /// Checks every invariant of the engine's pool.
    ///
    /// # Errors
    /// If the engine has stopped, which a violated invariant also causes.
    pub async fn validate(&self) -> Result<(), Refusal> {
        self.ask(Command::Validate).await
    }

    /// Stops the engine. Active requests are lost, and their tickets report it.
    pub fn halt(&self) {
        self.halt.cancel();
    }

    /// Stops the engine and waits until its sockets are closed.
    pub async fn stop(mut self) {
        self.halt();
        while self.tasks.join_next().await.is_some() {}
    }

    async fn ask<T>(
        &self,
        command: impl FnOnce(oneshot::Sender<T>) -> Command,
    ) -> Result<T, Refusal> {
        let (reply, answer) = oneshot::channel();
        self.commands.send(command(reply)).await.map_err(|_| Refusal::Gone)?;
        answer.await.map_err(|_| Refusal::Gone)
    }
}
