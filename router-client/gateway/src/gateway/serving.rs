//! Tracks an active request at its workers until it ends.

use super::Failure;
use crate::answer::{EventKind, Tally};
use crate::metrics::{End, GatewayMetrics};
use crate::mismatch::Mismatches;
use crate::request::Kind;
use kvasir_proto::types::{PartitionKey, SequenceHash, WorkerKey};
use kvasir_router::metrics::RequestMetrics;
use kvasir_router::output::Pace;
use kvasir_router::recorder::{Recorded, Recorder};
use parking_lot::Mutex;
use router_client::router::{Ended, Placement};
use std::sync::Arc;
use tokio::time::Instant;

/// Output tokens between two reports to the router.
const REPORT_TOKENS: u64 = 16;

/// Counts a request as active until it is dropped, and then as ended.
#[derive(Debug)]
pub(super) struct Ending {
    metrics: GatewayMetrics,
    kind: Kind,
    began: Instant,
    end: End,
    /// Whether the count was handed over to another `Ending`.
    is_handed_on: bool,
}

/// Data with which a [`Serving`] starts.
#[derive(Debug)]
pub(super) struct Parts {
    pub(super) placement: Placement,
    pub(super) recorded: Option<Recorded>,
    /// Partition and first block of the prompt, if its tokens are known.
    pub(super) served: Option<(PartitionKey, SequenceHash)>,
    /// Tokens of the prompt, if the engine's cached tokens are comparable with the prediction.
    pub(super) comparable_tokens: Option<u64>,
    pub(super) recorder: Recorder,
    pub(super) metrics: GatewayMetrics,
    pub(super) route_metrics: RequestMetrics,
    pub(super) mismatches: Arc<Mutex<Mismatches>>,
    pub(super) gateway_began: Instant,
    pub(super) began: Instant,
    pub(super) deadline: Instant,
    pub(super) tally: Tally,
}

/// An active request at its worker. Dropping it frees the worker and counts as a disconnected client.
#[derive(Debug)]
pub(super) struct Serving {
    worker: WorkerKey,
    /// `None` after the request has ended.
    placement: Option<Placement>,
    recorded: Option<Recorded>,
    served: Option<(PartitionKey, SequenceHash)>,
    comparable_tokens: Option<u64>,
    recorder: Recorder,
    metrics: GatewayMetrics,
    route_metrics: RequestMetrics,
    mismatches: Arc<Mutex<Mismatches>>,
    gateway_began: Instant,
    pace: Pace,
    request_id: String,
    has_begun: bool,
    reported: u64,
    /// Deadline for the start of the answer.
    pub(super) deadline: Instant,
    pub(super) tally: Tally,
}

// === impl Ending ===

impl Ending {
    pub(super) fn new(metrics: GatewayMetrics, kind: Kind, began: Instant) -> Self {
        metrics.in_flight.inc();
        // Without another result, the client has disconnected.
        Self { metrics, kind, began, end: End::Cancelled, is_handed_on: false }
    }

    pub(super) const fn set(&mut self, end: End) {
        self.end = end;
    }

    /// Hands the count over to the body of the answer, which lives longer.
    pub(super) fn hand_on(&mut self) -> Self {
        self.is_handed_on = true;
        let Self { kind, began, end, .. } = *self;
        Self { metrics: self.metrics.clone(), kind, began, end, is_handed_on: false }
    }
}

impl Drop for Ending {
    fn drop(&mut self) {
        if !self.is_handed_on {
            self.metrics.in_flight.dec();
            self.metrics.ended(self.kind, self.end, self.began.elapsed());
        }
    }
}

// === impl Serving ===

impl Serving {
    pub(super) fn new(parts: Parts) -> Self {
        let Parts { placement, recorded, served, recorder, metrics, route_metrics, .. } = parts;
        Self {
            worker: placement.decode.worker().clone(),
            request_id: placement.decode.request_id().to_owned(),
            placement: Some(placement),
            recorded,
            served,
            comparable_tokens: parts.comparable_tokens,
            recorder,
            metrics,
            route_metrics,
            mismatches: parts.mismatches,
            gateway_began: parts.gateway_began,
            pace: Pace::new(parts.began),
            has_begun: false,
            reported: 0,
            deadline: parts.deadline,
            tally: parts.tally,
        }
    }

    pub(super) const fn worker(&self) -> &WorkerKey {
        &self.worker
    }

    pub(super) fn request_id(&self) -> &str {
        &self.request_id
    }

    /// Renews the request's lease.
    pub(super) fn is_alive(&mut self) {
        if let Some(placement) = &mut self.placement {
            placement.output_tokens(self.tally.output_tokens);
        }
    }

    /// Counts an event of the answer, and reports output from time to time. Returns the kind of the event.
    pub(super) fn event(&mut self, event: &[u8]) -> EventKind {
        let kind = self.tally.event(event);
        if kind == EventKind::Error {
            return kind;
        }
        self.first_token();
        let tokens = self.tally.output_tokens;
        // The final usage corrects the number of tokens, but brings no token itself.
        if kind == EventKind::Part {
            self.pace.tokens(tokens, &self.metrics.output);
        }
        if tokens >= self.reported + REPORT_TOKENS {
            self.reported = tokens;
            self.is_alive();
        }
        kind
    }

    /// Reports the first output token. Only the first call has an effect.
    fn first_token(&mut self) {
        if std::mem::replace(&mut self.has_begun, true) {
            return;
        }
        self.pace.first_token(&self.metrics.output);
        if let Some(placement) = &mut self.placement {
            placement.first_token();
        }
        if let Some(recorded) = &mut self.recorded {
            recorded.first_token();
        }
    }

    /// Ends the request after a complete answer.
    pub(super) fn complete(mut self) -> Tally {
        self.metrics.output.ended(self.tally.output_tokens);
        if let Some((partition, first)) = self.served.take() {
            let now = self.gateway_began.elapsed();
            self.mismatches.lock().served(&partition, first, now);
        }
        self.end_placement(Some(false));
        std::mem::take(&mut self.tally)
    }

    /// Ends the request as failed by the worker.
    pub(super) fn fail(&mut self, why: String) -> Failure {
        // A request that failed before its first byte is recorded at the worker that answers it.
        if !self.has_begun {
            self.recorded = None;
        }
        self.end_placement(Some(true));
        Failure::OfWorker(self.worker.worker.clone(), why)
    }

    /// Ends the request at the router, and reports output, cached tokens and fetches. Only the first call has an
    /// effect.
    fn end_placement(&mut self, has_failed: Option<bool>) {
        let Some(mut placement) = self.placement.take() else { return };
        placement.output_tokens(self.tally.output_tokens);
        // If the engine counts another number of tokens, its template or tokenizer differs from the gateway's.
        let is_same_prompt = self.tally.prompt_tokens.is_some()
            && self.tally.prompt_tokens == self.comparable_tokens;
        let cached_tokens = self.tally.cached_tokens.filter(|_| is_same_prompt);
        if let Some((bytes, took)) = self.tally.fetched {
            placement.decode.report_fetch(bytes, took);
            self.route_metrics.fetched(bytes, took);
        }
        let freed = placement.decode.end(Ended { has_failed, cached_tokens });
        let expected = freed.map(|freed| freed.expected_cached_tokens);
        self.route_metrics.freed(has_failed == Some(true), expected.zip(cached_tokens));
        if let Some(mut recorded) = self.recorded.take() {
            recorded.ends_with(self.tally.output_tokens);
            self.recorder.end(recorded, self.tally.cached_tokens);
        }
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.end_placement(None);
    }
}
