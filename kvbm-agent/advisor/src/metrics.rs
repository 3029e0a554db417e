//! Counters of the advisor.

use crate::state::{AdviceKind, Applied};
use parking_lot::Mutex;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;
use std::fmt;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Outcome {
    outcome: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Kind {
    kind: &'static str,
}

/// Counters of an advisor, and the state of its connection.
#[derive(Default)]
pub struct AdvisorMetrics {
    batches: Family<Outcome, Counter>,
    asked: Counter,
    advice: Family<Kind, Counter>,
    hooks: Family<Outcome, Counter>,
    expired: Counter,
    /// Why NATS is not connected; `None` while it is.
    outage: Mutex<Option<String>>,
}

impl fmt::Debug for AdvisorMetrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AdvisorMetrics").field("outage", &self.outage).finish_non_exhaustive()
    }
}

impl AdvisorMetrics {
    /// Creates all counters and registers them.
    #[must_use]
    pub fn registered(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        let batches = "Batches of storage events received, by outcome";
        registry.register("advisor_batches", batches, metrics.batches.clone());
        let asked = "Requests for images of all stored blocks, sent to agents";
        registry.register("advisor_image_requests", asked, metrics.asked.clone());
        let advice = "Pieces of advice created, by kind";
        registry.register("advisor_advice", advice, metrics.advice.clone());
        let hooks = "Runs of the advice hook by outcome; dropped: the hook's queue was full";
        registry.register("advisor_hooks", hooks, metrics.hooks.clone());
        let expired =
            "Places (workers' storage locations) dropped because they sent no message for too long";
        registry.register("advisor_places_expired", expired, metrics.expired.clone());
        metrics
    }

    /// Counts a batch by its outcome.
    pub fn applied(&self, applied: Applied) {
        self.batch(match applied {
            Applied::Taken => "taken",
            Applied::Stale => "stale",
            Applied::Gap => "gap",
            Applied::Refused => "refused",
        });
    }

    /// Counts a batch that breaks the contract.
    pub fn malformed(&self) {
        self.batch("malformed");
    }

    fn batch(&self, outcome: &'static str) {
        self.batches.get_or_create(&Outcome { outcome }).inc();
    }

    /// Counts a request for images.
    pub fn asked(&self) {
        self.asked.inc();
    }

    /// Counts a piece of advice.
    pub fn advised(&self, kind: AdviceKind) {
        self.advice.get_or_create(&Kind { kind: kind.as_str() }).inc();
    }

    /// Counts a run of the hook by its outcome, or a dropped one.
    pub fn hooked(&self, outcome: &'static str) {
        self.hooks.get_or_create(&Outcome { outcome }).inc();
    }

    /// Counts expired places.
    pub fn expired(&self, places: usize) {
        self.expired.inc_by(places as u64);
    }

    /// Sets why NATS is not connected; `None` if it is.
    pub fn set_outage(&self, why: Option<String>) {
        *self.outage.lock() = why;
    }

    /// Why NATS is not connected; `None` while it is.
    #[must_use]
    pub fn outage(&self) -> Option<String> {
        self.outage.lock().clone()
    }
}
