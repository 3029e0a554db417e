use super::index::IndexUse;
use super::outcome::{Choice, Ended, Freed};
use super::shared::Shared;
use super::waiting::Queued;
use crate::route::{Decision, RequestKey};
use kvasir_proto::types::WorkerKey;
use std::sync::Arc;
use std::time::Duration;

/// An active request at its chosen worker. Dropping the reservation frees the worker.
#[derive(Debug)]
#[must_use = "dropping it frees the worker"]
pub struct Reservation {
    guard: Guard,
    choice: Choice,
}

/// Frees a request when dropped.
#[derive(Debug)]
struct Guard {
    shared: Arc<Shared>,
    key: RequestKey,
    /// Whether dropping frees nothing, because the request has ended or is tracked by its id.
    is_released: bool,
}

impl Reservation {
    pub(super) const fn new(shared: Arc<Shared>, key: RequestKey, choice: Choice) -> Self {
        Self { guard: Guard { shared, key, is_released: false }, choice }
    }

    /// Completes the choice by the index's contribution and the wait in the queue.
    pub(super) fn complete_choice(mut self, index_use: IndexUse, queued: Option<Queued>) -> Self {
        self.choice.index_use = index_use;
        self.choice.queued = queued;
        self
    }

    /// The rank to send the request to.
    #[must_use]
    pub const fn worker(&self) -> &WorkerKey {
        &self.choice.decision.worker
    }

    /// Id of the request.
    #[must_use]
    pub fn request_id(&self) -> &str {
        self.guard.key.id()
    }

    /// The decision.
    #[must_use]
    pub const fn decision(&self) -> &Decision {
        &self.choice.decision
    }

    /// The decision with the data that led to it.
    #[must_use]
    pub const fn choice(&self) -> &Choice {
        &self.choice
    }

    /// The index's contribution.
    #[must_use]
    pub const fn index_use(&self) -> &IndexUse {
        &self.choice.index_use
    }

    /// The request's wait in the queue; `None` if it did not wait.
    #[must_use]
    pub const fn queued(&self) -> Option<Queued> {
        self.choice.queued
    }

    /// Duration of the choice, without hashing and the index.
    #[must_use]
    pub const fn choosing(&self) -> Duration {
        self.choice.choosing
    }

    /// Reports the first token. From now on only the prompt's blocks count as load, not its tokens.
    pub fn first_token(&self) {
        self.guard.shared.mark_prefill_completed(&self.guard.key);
    }

    /// Reports the total number of output tokens so far.
    pub fn output_tokens(&self, tokens: u64) {
        self.guard.shared.report_output(&self.guard.key, tokens);
    }

    /// Reports how many bytes the worker's agent fetched from peers for the request, and how long this took. Later
    /// plans assume this bandwidth for a minute.
    pub fn report_fetch(&self, bytes: u64, took: Duration) {
        self.guard.shared.report_fetch(bytes, took);
    }

    /// Ends the request and, unlike dropping the reservation, reports its result.
    pub fn end(mut self, ended: Ended) -> Option<Freed> {
        self.guard.is_released = true;
        self.guard.shared.end_request(&self.guard.key, ended)
    }

    /// Reports that the worker failed the request; too many failures eject the worker for a while. Retry with
    /// [`Hints::excluding`](super::Hints::excluding).
    pub fn failed(self) {
        let _freed = self.end(Ended { has_failed: Some(true), cached_tokens: None });
    }

    /// Detaches the request: from now on it is tracked by its id. It counts until [`Router::free`](super::Router::free)
    /// or until its lease expires.
    #[must_use]
    pub fn detach(mut self) -> (String, Choice) {
        self.guard.is_released = true;
        (self.guard.key.id().to_owned(), self.choice)
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if !self.is_released {
            let _freed = self.shared.end_request(&self.key, Ended::default());
        }
    }
}
