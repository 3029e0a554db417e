//! What is counted.

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

/// Counters of an advisor.
#[derive(Default)]
pub struct AdvisorMetrics {
    batches: Family<Outcome, Counter>,
    asked: Counter,
    advice: Family<Kind, Counter>,
    hooks: Family<Outcome, Counter>,
    expired: Counter,
    /// Why there is no connection to NATS; none while there is one.
    outage: Mutex<Option<String>>,
}

impl fmt::Debug for AdvisorMetrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AdvisorMetrics").field("outage", &self.outage).finish_non_exhaustive()
    }
}

impl AdvisorMetrics {
    /// All of them, and in the registry.
    #[must_use]
    pub fn registered(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        let batches = "Batches of storage events by what became of them";
        registry.register("advisor_batches", batches, metrics.batches.clone());
        let asked = "Requests for images";
        registry.register("advisor_image_requests", asked, metrics.asked.clone());
        let advice = "Pieces of advice by kind";
        registry.register("advisor_advice", advice, metrics.advice.clone());
        let hooks = "Runs of the hook by outcome; dropped are those that it had no time for";
        registry.register("advisor_hooks", hooks, metrics.hooks.clone());
        let expired = "Places that were forgotten because they gave no sign of life";
        registry.register("advisor_places_expired", expired, metrics.expired.clone());
        metrics
    }

    /// A batch came.
    pub fn applied(&self, applied: Applied) {
        self.batch(match applied {
            Applied::Taken => "taken",
            Applied::Stale => "stale",
            Applied::Gap => "gap",
            Applied::Refused => "refused",
        });
    }

    /// A batch came that breaks the contract.
    pub fn malformed(&self) {
        self.batch("malformed");
    }

    fn batch(&self, outcome: &'static str) {
        self.batches.get_or_create(&Outcome { outcome }).inc();
    }

    /// Images were asked for.
    pub fn asked(&self) {
        self.asked.inc();
    }

    /// There was advice.
    pub fn advised(&self, kind: AdviceKind) {
        self.advice.get_or_create(&Kind { kind: kind.as_str() }).inc();
    }

    /// A run of the hook ended so, or was dropped.
    pub fn hooked(&self, outcome: &'static str) {
        self.hooks.get_or_create(&Outcome { outcome }).inc();
    }

    /// Places were forgotten.
    pub fn expired(&self, places: usize) {
        self.expired.inc_by(places as u64);
    }

    /// Notes why there is no connection; none for that there is one.
    pub fn set_outage(&self, why: Option<String>) {
        *self.outage.lock() = why;
    }

    /// Why there is no connection.
    #[must_use]
    pub fn outage(&self) -> Option<String> {
        self.outage.lock().clone()
    }
}
