//! What the gateway counts itself, beside the router's own metrics. All are there with zero from the start.

use crate::request::Kind;
use crate::tokens::Unknown;
use hyper::StatusCode;
use kvasir_process::net::Reasons;
use kvasir_router::output::OutputMetrics;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;
use std::time::Duration;

/// What becomes of prefill at a prefill worker.
const PREFILLS: [&str; 3] = ["done", "failed", "without_parameters"];
/// What becomes of a speculative prefill.
const SPECULATIONS: [&str; 4] = ["done", "failed", "too_many", "no_text"];
/// How answers end.
const ENDS: [&str; 4] = ["complete", "failed", "cancelled", "refused"];

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RequestLabels {
    kind: &'static str,
    end: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OutcomeLabel {
    outcome: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct StatusLabel {
    status: u16,
}

/// The gateway's metrics. Cheap to clone.
#[derive(Debug, Clone)]
pub struct GatewayMetrics {
    requests: Family<RequestLabels, Counter>,
    errors: Family<StatusLabel, Counter>,
    tokens: Family<OutcomeLabel, Counter>,
    prefills: Family<OutcomeLabel, Counter>,
    speculations: Family<OutcomeLabel, Counter>,
    /// Requests that went to another worker.
    pub retries: Counter,
    /// Requests beyond the rate of their tenant or identity.
    pub limited: Reasons,
    /// Requests under way.
    pub in_flight: Gauge,
    /// Models whose tokens are not those of the engines.
    pub mismatched: Gauge,
    /// Prompts that came back and were held nowhere, once that happened too often in a row.
    pub mismatches: Counter,
    duration: Histogram,
    /// Pace of answers.
    pub output: OutputMetrics,
}

/// How a request ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// Its answer is complete.
    Complete,
    /// Its answer broke off, or no worker answered.
    Failed,
    /// The client left.
    Cancelled,
    /// It was refused, by the gateway or by the engine.
    Refused,
}

impl End {
    const fn word(self) -> &'static str {
        match self {
            Self::Complete => "complete",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
            Self::Refused => "refused",
        }
    }
}

impl GatewayMetrics {
    /// Registers all of them.
    #[must_use]
    pub fn registered(registry: &mut Registry) -> Self {
        let output = OutputMetrics::registered(registry, "gateway");
        let registry = registry.sub_registry_with_prefix("gateway");
        let metrics = Self {
            requests: Family::default(),
            errors: Family::default(),
            tokens: Family::default(),
            prefills: Family::default(),
            speculations: Family::default(),
            retries: Counter::default(),
            limited: Reasons::default(),
            in_flight: Gauge::default(),
            mismatched: Gauge::default(),
            mismatches: Counter::default(),
            duration: Histogram::new(exponential_buckets(0.001, 2.0, 20)),
            output,
        };
        metrics.fill();
        let at = &metrics;
        let help = "Requests that have ended, by kind and by how";
        registry.register("requests", help, at.requests.clone());
        registry.register(
            "errors",
            "Errors that the gateway answered, by status",
            at.errors.clone(),
        );
        let help = "Where the tokens of prompts came from: known, or why they are not";
        registry.register("tokens", help, at.tokens.clone());
        let help = "Prompts that were sent to prefill workers, by what became of them";
        registry.register("prefills", help, at.prefills.clone());
        let help = "Conversations to be computed ahead, by what became of them";
        registry.register("speculative_prefills", help, at.speculations.clone());
        let help = "Requests that went to another worker because one failed them";
        registry.register("retries", help, at.retries.clone());
        let help =
            "Requests refused since their tenant or identity has used its rate, by whose it is";
        at.limited.register(registry, "limited", help);
        registry.register("in_flight_requests", "Requests under way", at.in_flight.clone());
        let help = "Models whose tokens are not those of the engines";
        registry.register("token_mismatches", help, at.mismatched.clone());
        let help = "Times that the tokens of a model turned out not to be those of the engines";
        registry.register("token_mismatches_found", help, at.mismatches.clone());
        registry.register("duration_seconds", "Time that requests took", at.duration.clone());
        metrics
    }

    fn fill(&self) {
        for end in ENDS {
            for kind in [Kind::Chat, Kind::Completion] {
                drop(self.requests.get_or_create(&RequestLabels { kind: kind.word(), end }));
            }
        }
        for outcome in Unknown::ALL.map(Unknown::word).into_iter().chain(["known"]) {
            drop(self.tokens.get_or_create(&OutcomeLabel { outcome }));
        }
        for outcome in PREFILLS {
            drop(self.prefills.get_or_create(&OutcomeLabel { outcome }));
        }
        for outcome in SPECULATIONS {
            drop(self.speculations.get_or_create(&OutcomeLabel { outcome }));
        }
    }

    /// A request has ended.
    pub fn ended(&self, kind: Kind, end: End, took: Duration) {
        self.requests.get_or_create(&RequestLabels { kind: kind.word(), end: end.word() }).inc();
        self.duration.observe(took.as_secs_f64());
    }

    /// The gateway answered an error.
    pub fn error(&self, status: StatusCode) {
        self.errors.get_or_create(&StatusLabel { status: status.as_u16() }).inc();
    }

    /// The tokens of a prompt are known, or not for a reason.
    pub fn tokens(&self, unknown: Option<Unknown>) {
        let outcome = unknown.map_or("known", Unknown::word);
        self.tokens.get_or_create(&OutcomeLabel { outcome }).inc();
    }

    /// A prefill worker was asked; the outcome is one of those that are there from the start.
    pub fn prefill(&self, outcome: &'static str) {
        self.prefills.get_or_create(&OutcomeLabel { outcome }).inc();
    }

    /// A conversation was to be computed ahead; the outcome is one of those that are there from the start.
    pub fn speculation(&self, outcome: &'static str) {
        self.speculations.get_or_create(&OutcomeLabel { outcome }).inc();
    }
}
