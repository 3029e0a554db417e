//! The state that clones of a router share, and the queue slots of waiting requests.

use super::config::{Filter, RouterConfig};
use super::error::RouteError;
use super::index::{Index, Overlaps};
use super::outcome::{Ended, Freed};
use super::state::{Pending, State};
use super::waiting::{Queued, Waiter};
use crate::prompt::HashedPrompt;
use crate::route::{
    ConfigError, Decision, ExpectedReuse, Queue, QueueFull, RequestKey, Ticket, Update, Wait,
};
use kvasir_proto::convert::{ReuseReport, WorkerAddress};
use kvasir_proto::types::{PromptReuse, WorkerId, WorkerKey};
use kvasir_trace::step;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tracing::Instrument;

/// Maximum placements and reports being sent to the index concurrently. Further ones are dropped.
const RECORDINGS_MAX: usize = 256;

/// How long a worker's reuse is not reported after the index has refused a report.
const REFUSED_PAUSE: Duration = Duration::from_secs(300);

/// The state that clones of a router share.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) index: Index,
    pub(super) config: RouterConfig,
    origin: Instant,
    state: Mutex<State>,
    /// Tasks that record placements and reused tokens.
    recordings: Mutex<JoinSet<()>>,
    /// Workers whose reports of reused tokens the index has refused, and when to try again.
    refused: Arc<Mutex<BTreeMap<WorkerId, Instant>>>,
}

/// Result of trying to place a request.
#[derive(Debug)]
pub(super) enum Outcome {
    /// The request goes to a rank, and counts as load there.
    Placed(RequestKey, Box<Decision>),
    /// The request waits in the queue.
    Wait(Place),
}

/// A slot in the queue. Dropping it frees the slot, and wakes the next request.
#[derive(Debug)]
pub(super) struct Place {
    shared: Arc<Shared>,
    ticket: Ticket,
    position: usize,
    pub(super) arrived: Duration,
    released: oneshot::Receiver<Duration>,
}

// === impl Shared ===

impl Shared {
    pub(super) fn new(config: RouterConfig, index: Index) -> Result<Self, ConfigError> {
        let state = State::new(&config)?;
        let origin = Instant::now();
        let state = Mutex::new(state);
        let recordings = Mutex::default();
        let refused = Arc::default();
        Ok(Self { index, config, origin, state, recordings, refused })
    }

    /// Time since the router was created.
    pub(super) fn now(&self) -> Duration {
        self.origin.elapsed()
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        // No code panics while it has the lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Chooses a rank and adds the request's load in one critical section, so that the next request sees it. If the
    /// request must wait, queues it in the same critical section, so that it misses no freed capacity.
    pub(super) fn decide(
        self: &Arc<Self>,
        pending: &Pending<'_>,
        overlaps: &Overlaps,
    ) -> Result<Outcome, RouteError> {
        let now = self.now();
        let mut state = self.state();
        if let Some(place) = self.enqueue(pending, &mut state, now)? {
            return Ok(Outcome::Wait(place));
        }
        let (key, decision) = state.place(pending, overlaps, now)?;
        Ok(Outcome::Placed(key, Box::new(decision)))
    }

    /// Queues a request if it must wait now.
    pub(super) fn wait(
        self: &Arc<Self>,
        pending: &Pending<'_>,
    ) -> Result<Option<Place>, RouteError> {
        let now = self.now();
        self.enqueue(pending, &mut self.state(), now)
    }

    /// Queues a request that must wait; any other request gets `None`. Fails if the request's queue timeout is 0, or
    /// the queue refuses it.
    fn enqueue(
        self: &Arc<Self>,
        pending: &Pending<'_>,
        state: &mut State,
        now: Duration,
    ) -> Result<Option<Place>, RouteError> {
        if !state.must_wait(pending, now) {
            return Ok(None);
        }
        if pending.hints.queue_timeout == Some(Duration::ZERO) {
            return Err(RouteError::QueueTimeout(Duration::ZERO));
        }
        let wait = Wait {
            lane: state.lane(&pending.hints.filter),
            input_tokens: pending.question.input_tokens,
            latency_sensitivity_secs: pending.hints.latency_sensitivity_secs,
            deadline: None,
        };
        // A released request that finds the capacity taken waits again, with its original arrival time.
        let arrived = pending.arrived.unwrap_or(now);
        let place = Place::enter_queue(self, state.queue(), &pending.hints.filter, wait, arrived)?;
        state.counts.queued += u64::from(pending.arrived.is_none());
        // Time alone may have made room for earlier requests.
        state.release_next(now);
        Ok(Some(place))
    }

    pub(super) fn mark_prefill_completed(&self, key: &RequestKey) -> Update {
        let now = self.now();
        self.state().mark_prefill_completed(key, now)
    }

    pub(super) fn report_output(&self, key: &RequestKey, tokens: u64) -> Update {
        let now = self.now();
        self.state().report_output(key, tokens, now)
    }

    pub(super) fn report_fetch(&self, bytes: u64, took: Duration) {
        let now = self.now();
        self.state().report_fetch(bytes, took, now);
    }

    pub(super) fn end_request(&self, key: &RequestKey, ended: Ended) -> Option<Freed> {
        let Ended { has_failed, cached_tokens } = ended;
        let now = self.now();
        let (worker, expected_cached_tokens, reuse) = self.state().free(key, has_failed, now)?;
        let served = reuse.zip(cached_tokens).filter(|_| has_failed != Some(true));
        if let Some((reuse, cached)) = served {
            self.report_reuse(&worker, reuse, cached);
        }
        Some(Freed { worker, expected_cached_tokens, cached_tokens })
    }

    /// Reports the actual reuse of a prompt to the index, in a background task. Drops the report if
    /// [`RECORDINGS_MAX`] calls are under way, or the index has refused a report of the worker within
    /// [`REFUSED_PAUSE`].
    fn report_reuse(&self, rank: &WorkerKey, reuse: ExpectedReuse, cached: u64) {
        let ExpectedReuse { partition, prompt, expected } = reuse;
        // The engine's own count; it may exceed the prompt if the engine adds tokens.
        let cached = u32::try_from(cached).unwrap_or(u32::MAX).min(prompt);
        let address = WorkerAddress { partition, worker: rank.worker.clone() };
        let requests = vec![PromptReuse { prompt, expected, cached }];
        let report = ReuseReport { address, rank: rank.rank, requests };
        let index = self.index.clone();
        let refused = Arc::clone(&self.refused);
        if self.is_refused(&rank.worker) {
            return;
        }
        let reporting = async move {
            let Err(error) = index.report_reuse(&report).await else { return };
            let worker = report.address.worker;
            if !error.is_refusal() {
                tracing::debug!(%error, %worker, "the reuse of a prompt is not reported");
                return;
            }
            let mut refused = refused.lock().unwrap_or_else(PoisonError::into_inner);
            if refused.is_empty() {
                tracing::info!(
                    %error, %worker,
                    "the index refuses reports of cached tokens: they are not reported for 5 minutes"
                );
            }
            refused.insert(worker, Instant::now() + REFUSED_PAUSE);
        };
        self.spawn_recording(reporting.instrument(step!("report_reuse")));
    }

    /// Whether the index has refused a report of the worker within [`REFUSED_PAUSE`].
    pub(super) fn is_refused(&self, worker: &WorkerId) -> bool {
        let now = Instant::now();
        let mut refused = self.refused.lock().unwrap_or_else(PoisonError::into_inner);
        refused.retain(|_, until| *until > now);
        refused.contains_key(worker)
    }

    /// Runs a call to the index in a background task. Returns false if [`RECORDINGS_MAX`] calls are under way, or there
    /// is no runtime.
    fn spawn_recording(&self, call: impl Future<Output = ()> + Send + 'static) -> bool {
        // A reservation may be dropped outside of a runtime.
        let Ok(runtime) = Handle::try_current() else { return false };
        let mut recordings = self.recordings.lock().unwrap_or_else(PoisonError::into_inner);
        while recordings.try_join_next().is_some() {}
        let has_room = recordings.len() < RECORDINGS_MAX;
        if has_room {
            recordings.spawn_on(call, &runtime);
        }
        has_room
    }

    /// Records a placement at the index, in a background task. Returns immediately if recording is off. Drops and
    /// counts the placement if [`RECORDINGS_MAX`] are under way.
    pub(super) fn record(self: &Arc<Self>, prompt: &HashedPrompt, rank: &WorkerKey) {
        let Some(ttl) = self.config.placement_ttl.filter(|_| !self.index.is_none()) else { return };
        let index = self.index.clone();
        let prompt = prompt.clone();
        let rank = rank.clone();
        let recording = async move {
            if let Err(error) = index.record(&prompt, &rank, ttl).await {
                tracing::debug!(%error, worker = %rank, "a placement is not recorded");
            }
        };
        if !self.spawn_recording(recording.instrument(step!("record_placement"))) {
            self.state().counts.unrecorded += 1;
        }
    }
}

// === impl Place ===

impl Place {
    /// Adds a request to the queue.
    pub(super) fn enter_queue(
        shared: &Arc<Shared>,
        queue: &mut Queue<Waiter>,
        filter: &Filter,
        wait: Wait,
        arrived: Duration,
    ) -> Result<Self, QueueFull<()>> {
        let (release, released) = oneshot::channel();
        let waiter = Waiter { filter: filter.clone(), release };
        let ticket = queue.push(wait, waiter, arrived).map_err(|_full| QueueFull(()))?;
        let position = queue.position(ticket).unwrap_or(0);
        Ok(Self { shared: Arc::clone(shared), ticket, position, arrived, released })
    }

    /// Waits until a rank has room.
    pub(super) async fn released(&mut self) -> Queued {
        // The queue never drops a waiter without releasing it.
        let waited = (&mut self.released).await.unwrap_or_default();
        Queued { position: self.position, waited }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let now = self.shared.now();
        let mut state = self.shared.state();
        let _left = state.queue().cancel(self.ticket, now);
        // If the request was released, its capacity may still be free.
        state.release_next(now);
    }
}
