use super::index::IndexUse;
use super::outcome::{Choice, Ended, Freed};
use super::shared::Shared;
use super::waiting::Queued;
use crate::route::{Decision, RequestKey};
use kvasir_proto::types::WorkerKey;
use std::sync::Arc;
use std::time::Duration;

/// A request under way at the worker that was chosen for it. Dropping it frees the worker.
#[derive(Debug)]
#[must_use = "dropping it frees the worker"]
pub struct Reservation {
    guard: Guard,
    choice: Choice,
}

/// Frees a request when it is dropped.
#[derive(Debug)]
struct Guard {
    shared: Arc<Shared>,
    key: RequestKey,
    /// Whether it frees nothing: the request has ended, or is followed by its id.
    is_released: bool,
}

impl Reservation {
    pub(super) const fn new(shared: Arc<Shared>, key: RequestKey, choice: Choice) -> Self {
        Self { guard: Guard { shared, key, is_released: false }, choice }
    }

    /// The rank to send the request to.
    #[must_use]
    pub const fn worker(&self) -> &WorkerKey {
        &self.choice.decision.worker
    }

    /// Its id.
    #[must_use]
    pub fn request_id(&self) -> &str {
        self.guard.key.id()
    }

    /// The decision.
    #[must_use]
    pub const fn decision(&self) -> &Decision {
        &self.choice.decision
    }

    /// The decision with all that led to it.
    #[must_use]
    pub const fn choice(&self) -> &Choice {
        &self.choice
    }

    /// What the index contributed.
    #[must_use]
    pub const fn index_use(&self) -> &IndexUse {
        &self.choice.index_use
    }

    /// What waiting cost; none if the request did not wait.
    #[must_use]
    pub const fn queued(&self) -> Option<Queued> {
        self.choice.queued
    }

    /// How long the choice itself took, beside hashing and the index.
    #[must_use]
    pub const fn choosing(&self) -> Duration {
        self.choice.choosing
    }

    /// The first token is out: the prompt's tokens count as load no more, its blocks do.
    pub fn first_token(&self) {
        self.guard.shared.mark_prefill_completed(&self.guard.key);
    }

    /// So many tokens of output in all so far.
    pub fn output_tokens(&self, tokens: u64) {
        self.guard.shared.report_output(&self.guard.key, tokens);
    }

    /// The worker's agent fetched so many bytes from peers for the request, in so much time: later plans assume this bandwidth, for
    /// a minute.
    pub fn report_fetch(&self, bytes: u64, took: Duration) {
        self.guard.shared.report_fetch(bytes, took);
    }

    /// The request has ended. Unlike dropping the reservation, this tells the router how.
    pub fn end(mut self, ended: Ended) -> Option<Freed> {
        self.guard.is_released = true;
        self.guard.shared.end(&self.guard.key, ended)
    }

    /// The worker failed the request: a worker that fails too often is left alone for a while. Try again with
    /// [`Hints::excluding`](super::Hints::excluding).
    pub fn failed(self) {
        let _freed = self.end(Ended { has_failed: Some(true), cached_tokens: None });
    }

    /// Hands the request over to whoever knows its id: from now on it counts until [`Router::free`](super::Router::free)
    /// or until its lease ends.
    #[must_use]
    pub fn detach(mut self) -> (String, Choice) {
        self.guard.is_released = true;
        (self.guard.key.id().to_owned(), self.choice)
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if !self.is_released {
            let _freed = self.shared.end(&self.key, Ended::default());
        }
    }
}
