//! The router as a library: chooses a worker for a prompt, and tracks the load of each request.
//!
//! [`Router`] queries the index for each worker's overlap, adds the load of active requests, and chooses by the pure
//! cores in [`route`](crate::route). The returned [`Reservation`] counts as load until it is dropped, so a gateway that
//! loses a client, or panics, frees the worker.
//!
//! If the index does not answer in time, the router decides by load alone, and the reservation reports it.

mod builder;
mod candidates;
mod config;
mod error;
mod index;
#[cfg(test)]
mod index_fixture_test;
mod outcome;
mod pools;
#[cfg(test)]
mod pools_test;
#[cfg(test)]
mod queries_test;
mod reservation;
#[cfg(test)]
mod reuse_test;
mod shared;
mod state;
mod waiting;
mod workers;

pub use builder::RouterBuilder;
pub use config::{Filter, Hints, RouterConfig, RouterWorker};
pub use error::RouteError;
pub use index::{Index, IndexUse};
pub use outcome::{Choice, Ended, Freed};
pub use pools::{Detached, Placement, Pools, PoolsConfig, PrefillOutcome};
pub use reservation::Reservation;
pub use state::RouterCounts;
pub use waiting::Queued;

use crate::prompt::{HashedPrompt, Prompt};
use crate::route::{
    BusyThresholds, ConfigError, Decision, Preferences, Question, RankLoad, Rate, SyncCounts,
    SyncMessage, TierBlocks, Update,
};
use index::Overlaps;
use kvasir_proto::types::{SequenceHash, WorkerId, WorkerKey};
use kvasir_trace::step;
use shared::{Outcome, Place, Shared};
use state::{Part, Pending};
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, timeout};
use tracing::Instrument;

/// The load of a rank if it received a prompt.
#[derive(Debug, Clone, PartialEq)]
pub struct PotentialLoad {
    /// The rank.
    pub worker: WorkerKey,
    /// Tokens that the rank would have to compute, including the tokens of active requests.
    pub prefill_tokens: f64,
    /// Blocks that would be in use.
    pub decode_blocks: f64,
}

/// Result of trying to place a request.
enum Attempt {
    Placed(Box<Reservation>),
    Wait(Place),
}

/// Chooses workers of one model and tenant. Cheap to clone: clones share loads and settings.
#[derive(Debug, Clone)]
pub struct Router {
    shared: Arc<Shared>,
}

impl Router {
    /// A router without workers. `index` reports overlap; with [`Index::None`], load alone decides.
    ///
    /// # Errors
    /// If a setting is invalid.
    pub fn new(config: RouterConfig, index: Index) -> Result<Self, ConfigError> {
        Ok(Self { shared: Arc::new(Shared::new(config, index)?) })
    }

    /// Builds a router step by step, for a fleet with this block size in tokens.
    #[must_use]
    pub fn builder(block_size: NonZeroU32) -> RouterBuilder {
        RouterBuilder::new(block_size)
    }

    /// Replaces the workers; each rank is one entry. A rank that is missing is removed with its requests. A rank that
    /// remains keeps its load.
    pub fn set_workers(&self, workers: impl IntoIterator<Item = RouterWorker>) {
        // The caller's code runs before the lock is taken.
        let workers = workers.into_iter().collect();
        let now = self.shared.now();
        self.shared.state().set_workers(workers, now);
    }

    /// Changes the thresholds above which ranks are too busy for a request.
    ///
    /// # Errors
    /// If a threshold is out of range; then the old thresholds stay.
    pub fn set_busy_thresholds(&self, busy: BusyThresholds) -> Result<(), ConfigError> {
        let now = self.shared.now();
        self.shared.state().set_busy(busy, now)
    }

    /// The thresholds in force.
    #[must_use]
    pub fn busy_thresholds(&self) -> BusyThresholds {
        self.shared.state().selector().config().busy
    }

    /// The initial settings of the router.
    #[must_use]
    pub fn config(&self) -> &RouterConfig {
        &self.shared.config
    }

    /// Chooses a worker for a prompt, and counts the request as load until the reservation is dropped. Waits for the
    /// index until its client's deadline, and in the queue while all workers are over the queue threshold.
    ///
    /// # Errors
    /// If no worker may receive the request, all are busy, the queue is full, or a hint or the prompt's block size is
    /// invalid.
    pub async fn select(
        &self,
        prompt: &Prompt<'_>,
        hints: &Hints,
    ) -> Result<Reservation, RouteError> {
        // A rank missing in the answer would count as having no blocks.
        let all = Prompt { minimum_overlap_blocks: 1, top_k: 0, shared: true, ..*prompt };
        self.select_hashed(&all.hashed(), hints).await
    }

    /// [`Router::select`] for an already hashed prompt.
    ///
    /// # Errors
    /// As for [`Router::select`].
    pub async fn select_hashed(
        &self,
        prompt: &HashedPrompt,
        hints: &Hints,
    ) -> Result<Reservation, RouteError> {
        let chain = prompt.sequence_hashes();
        let pending = self.pending(prompt, &chain, hints, Part::Whole)?;
        Box::pin(self.select_pending(pending, None)).await
    }

    /// Chooses a worker for a request, by the overlaps `known`. If they are `None`, or after a wait in the queue,
    /// queries the index.
    async fn select_pending(
        &self,
        pending: Pending<'_>,
        known: Option<Overlaps>,
    ) -> Result<Reservation, RouteError> {
        let span = step!("select_worker");
        self.attempt_until_placed(pending, known).instrument(span).await
    }

    /// Attempts to place a request until a worker has room, or the request gives up.
    async fn attempt_until_placed(
        &self,
        mut pending: Pending<'_>,
        mut known: Option<Overlaps>,
    ) -> Result<Reservation, RouteError> {
        let mut place = None;
        let mut queued = None;
        let most = pending.hints.queue_timeout.unwrap_or(Duration::MAX);
        let gives_up = Instant::now().checked_add(most);
        loop {
            match self.attempt(&pending, known.take(), queued).await? {
                Attempt::Placed(reservation) => {
                    // Requests queued behind this one then see its load.
                    drop(place);
                    return Ok(*reservation);
                }
                Attempt::Wait(mut waiting) => {
                    let left = gives_up
                        .map_or(Duration::MAX, |at| at.saturating_duration_since(Instant::now()));
                    let released = timeout(left, waiting.released()).await;
                    let released = released.map_err(|_late| RouteError::QueueTimeout(most))?;
                    let position = queued.map_or(released.position, |first: Queued| first.position);
                    queued = Some(Queued { position, ..released });
                    pending.arrived = Some(waiting.arrived);
                    place = Some(waiting);
                }
            }
        }
    }

    /// Places or queues a request. If `known` is `None`, first checks whether the request must wait, and then queries
    /// the index: an answer from before the wait would be out of date.
    async fn attempt(
        &self,
        pending: &Pending<'_>,
        known: Option<Overlaps>,
        queued: Option<Queued>,
    ) -> Result<Attempt, RouteError> {
        let overlaps = match known {
            Some(overlaps) => overlaps,
            None => match self.shared.wait(pending)? {
                Some(place) => return Ok(Attempt::Wait(place)),
                None => self.overlaps(pending).await,
            },
        };
        Ok(match self.try_place(pending, &overlaps)? {
            Attempt::Placed(reservation) => {
                let complete = reservation.complete_choice(overlaps.index_use, queued);
                Attempt::Placed(Box::new(complete))
            }
            waiting @ Attempt::Wait(_) => waiting,
        })
    }

    /// Places a request by the overlaps. Fails if the request would have to wait. The reservation does not report the
    /// index's contribution yet.
    fn place_now(
        &self,
        pending: &Pending<'_>,
        overlaps: &Overlaps,
    ) -> Result<Reservation, RouteError> {
        match self.try_place(pending, overlaps)? {
            Attempt::Placed(reservation) => Ok(*reservation),
            Attempt::Wait(_place) => Err(RouteError::QueueTimeout(Duration::ZERO)),
        }
    }

    /// Places a request by the overlaps, or queues it. The reservation does not report the index's contribution yet.
    fn try_place(&self, pending: &Pending<'_>, overlaps: &Overlaps) -> Result<Attempt, RouteError> {
        let begin = Instant::now();
        match self.shared.decide(pending, overlaps)? {
            Outcome::Placed(key, decision) => {
                self.shared.record(pending.prompt, &decision.worker);
                let choice = Choice {
                    decision: *decision,
                    index_use: IndexUse::NotNeeded,
                    queued: None,
                    choosing: begin.elapsed(),
                };
                let shared = Arc::clone(&self.shared);
                Ok(Attempt::Placed(Box::new(Reservation::new(shared, key, choice))))
            }
            Outcome::Wait(place) => Ok(Attempt::Wait(place)),
        }
    }

    /// The choice that [`Router::select`] would make now, with the data known of each rank. It reserves and records
    /// nothing, and does not wait in the queue.
    ///
    /// # Errors
    /// As for [`Router::select`].
    pub async fn explain(
        &self,
        prompt: &HashedPrompt,
        hints: &Hints,
    ) -> Result<Choice, RouteError> {
        let hints = Hints { explain: true, ..hints.clone() };
        let chain = prompt.sequence_hashes();
        let pending = self.pending(prompt, &chain, &hints, Part::Whole)?;
        let overlaps = self.overlaps(&pending).await;
        let begin = Instant::now();
        let decision = self.preview(&pending, &overlaps)?;
        let choosing = begin.elapsed();
        let index_use = overlaps.index_use;
        Ok(Choice { decision, index_use, queued: None, choosing })
    }

    /// The decision that the router would make now. It reserves and records nothing.
    fn preview(&self, pending: &Pending<'_>, overlaps: &Overlaps) -> Result<Decision, RouteError> {
        let now = self.shared.now();
        self.shared.state().choose(pending, overlaps, false, now)
    }

    /// Blocks of a prompt credited to each rank, by tier.
    ///
    /// # Errors
    /// As for [`Router::select`].
    pub async fn overlap_scores(
        &self,
        prompt: &HashedPrompt,
    ) -> Result<Vec<(WorkerKey, TierBlocks)>, RouteError> {
        let choice = self.explain(prompt, &Hints::default()).await?;
        let explanations = choice.decision.explanations.into_iter();
        Ok(explanations.map(|at| (at.worker, at.overlap)).collect())
    }

    /// Returns the load that each rank would have with the prompt.
    ///
    /// # Errors
    /// As for [`Router::select`].
    pub async fn potential_loads(
        &self,
        prompt: &HashedPrompt,
    ) -> Result<Vec<PotentialLoad>, RouteError> {
        let choice = self.explain(prompt, &Hints::default()).await?;
        let explanations = choice.decision.explanations.into_iter();
        let potential = explanations.map(|at| PotentialLoad {
            prefill_tokens: at.load.prefill_tokens as f64 + at.cost.new_prefill_tokens,
            decode_blocks: at.cost.decode_blocks,
            worker: at.worker,
        });
        Ok(potential.collect())
    }

    /// The load of each rank from active requests, ordered by worker and rank.
    #[must_use]
    pub fn loads(&self) -> Vec<(WorkerKey, RankLoad)> {
        self.shared.state().loads()
    }

    /// Whether the router can choose this worker.
    #[must_use]
    pub fn has_worker(&self, worker: &WorkerId) -> bool {
        self.shared.state().has_worker(worker)
    }

    /// Whether the router has any workers.
    #[must_use]
    pub fn has_workers(&self) -> bool {
        self.shared.state().has_workers()
    }

    /// Value of a worker's label.
    fn label(&self, worker: &WorkerKey, label: &str) -> Option<String> {
        self.shared.state().label(worker, label).cloned()
    }

    /// Whether a request is the prefill part of a request that is also in the main pool.
    fn is_paired(&self, request_id: &str) -> Result<bool, ConfigError> {
        let state = self.shared.state();
        Ok(state.is_paired(&state.key(request_id)?))
    }

    /// Generates a unique request id.
    fn new_request_id(&self) -> String {
        self.shared.state().new_id()
    }

    /// Whether this router has an active request with this id.
    #[must_use]
    pub fn has_request(&self, request_id: &str) -> bool {
        self.shared.state().has_request(request_id)
    }

    /// Number of requests in the queue, and the total tokens of their prompts.
    #[must_use]
    pub fn waiting(&self) -> (usize, u64) {
        self.shared.state().waiting()
    }

    /// The router's counters since its start.
    #[must_use]
    pub fn counts(&self) -> RouterCounts {
        self.shared.state().counts
    }

    /// Reports the first token of a [detached](Reservation::detach) request.
    ///
    /// # Errors
    /// If the id is invalid.
    pub fn mark_prefill_completed(&self, request_id: &str) -> Result<Update, ConfigError> {
        let key = self.shared.state().key(request_id)?;
        Ok(self.shared.mark_prefill_completed(&key))
    }

    /// Reports the total number of output tokens of a detached request so far.
    ///
    /// # Errors
    /// If the id is invalid.
    pub fn report_output(&self, request_id: &str, tokens: u64) -> Result<Update, ConfigError> {
        let key = self.shared.state().key(request_id)?;
        Ok(self.shared.report_output(&key, tokens))
    }

    /// Ends a detached request. Returns `None` if there is no active request with this id.
    ///
    /// # Errors
    /// If the id is invalid.
    pub fn free(&self, request_id: &str, ended: Ended) -> Result<Option<Freed>, ConfigError> {
        let key = self.shared.state().key(request_id)?;
        Ok(self.shared.end_request(&key, ended))
    }

    /// Reports how many bytes a worker fetched from other agents, and how long this took. Later plans assume this
    /// bandwidth for a minute.
    pub fn report_fetch(&self, bytes: u64, took: Duration) {
        self.shared.report_fetch(bytes, took);
    }

    /// The bandwidth that a plan would assume now, in bytes per second. `None` if the router plans no fetches.
    #[must_use]
    pub fn fetch_bandwidth(&self) -> Option<Rate> {
        let now = self.shared.now();
        self.shared.state().fetch_bandwidth(now)
    }

    /// Ends detached requests whose lease has expired, and releases queued requests for which time has made room. Call
    /// it about once a second if you detach reservations or use the queue. Returns the number of expired requests.
    pub fn tick(&self) -> usize {
        let now = self.shared.now();
        self.shared.state().expire(now)
    }

    /// The messages for replicas that are due now; empty if the router does not sync.
    #[must_use]
    pub fn flush_sync(&self) -> Vec<SyncMessage> {
        let now = self.shared.now();
        self.shared.state().flush_sync(now)
    }

    /// Applies a message from a replica.
    pub fn receive_sync(&self, message: &SyncMessage) {
        let now = self.shared.now();
        self.shared.state().receive_sync(message, now);
    }

    /// Counters of replica sync, and the number of known replicas; `None` if the router does not sync.
    #[must_use]
    pub fn sync_counts(&self) -> Option<(SyncCounts, usize)> {
        let now = self.shared.now();
        self.shared.state().sync_counts(now)
    }

    /// Queries the index for the ranks' overlaps, if the request's mode needs them.
    async fn overlaps(&self, pending: &Pending<'_>) -> Overlaps {
        let Pending { prompt, question, .. } = pending;
        let needs_overlap = self.shared.state().selector().needs_overlap(question);
        let index = &self.shared.index;
        let trust = &self.shared.config.trust;
        match (needs_overlap, self.shared.config.fetch) {
            (true, None) => index.overlaps(prompt, trust).await,
            (true, Some(_)) => index.overlaps_for_fetches(prompt, trust).await,
            (false, _) => Overlaps::not_needed(),
        }
    }

    /// Checks a request's hints and block size, and prepares its choice.
    fn pending<'a>(
        &self,
        prompt: &'a HashedPrompt,
        chain: &'a [SequenceHash],
        hints: &'a Hints,
        part: Part,
    ) -> Result<Pending<'a>, ConfigError> {
        let question = self.question(prompt, hints)?;
        Ok(Pending { part, prompt, question, hints, chain, arrived: None })
    }

    /// Checks the hints, and converts them to a question for the selector.
    fn question<'a>(
        &self,
        prompt: &HashedPrompt,
        hints: &'a Hints,
    ) -> Result<Question<'a>, ConfigError> {
        let block_size = self.shared.config.active.block_size;
        if prompt.block_size != block_size.get() {
            let setting = "block size of the prompt";
            let problem = "must be the router's";
            return Err(ConfigError { setting, problem });
        }
        let question = Question {
            mode: hints.mode,
            overlap_score_weight: hints.overlap_score_weight,
            temperature: hints.temperature,
            constraints: hints.filter.constraints(),
            preferences: Preferences {
                labels: &hints.preferred_labels,
                session: None,
                adapter: hints.adapter.as_deref(),
            },
            explain: hints.explain,
            ..Question::new(prompt.input_tokens, block_size)
        };
        question.check()?;
        hints.check()?;
        Ok(question)
    }
}

#[cfg(test)]
mod router_test;
