//! Counters of plans to fetch blocks from peers.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;
use router_client::route::{FetchPlan, NoFetch};
use std::sync::atomic::AtomicU64;
use std::time::Duration;

/// Values of the label `outcome`: a plan, or the reason for none.
const FETCH_OUTCOMES: [&str; 7] =
    ["planned", "not_asked", "complete", "no_agent", "no_holder", "unknown_rate", "not_faster"];

/// Label of the outcomes.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OutcomeLabel {
    outcome: &'static str,
}

/// Counters of fetch plans and reported fetches.
#[derive(Debug, Clone, Default)]
pub(crate) struct FetchCounters {
    outcomes: Family<OutcomeLabel, Counter>,
    blocks: Counter,
    recompute_blocks: Counter,
    expected: Counter<f64, AtomicU64>,
    compute: Counter<f64, AtomicU64>,
    bytes: Counter,
    seconds: Counter<f64, AtomicU64>,
}

// === impl FetchCounters ===

impl FetchCounters {
    /// Creates and registers all counters.
    pub(crate) fn registered(registry: &mut Registry) -> Self {
        let counters = Self::default();
        for outcome in FETCH_OUTCOMES {
            drop(counters.outcomes.get_or_create(&OutcomeLabel { outcome }));
        }
        let at = &counters;
        let help = "Decisions by whether they plan to fetch blocks from peers: planned, or the reason why not";
        registry.register("fetch_outcomes", help, at.outcomes.clone());
        registry.register(
            "fetch_blocks",
            "Blocks to fetch from peers according to fetch plans",
            at.blocks.clone(),
        );
        let help = "Blocks left for the worker to compute in decisions with a fetch plan";
        registry.register("fetch_recompute_blocks", help, at.recompute_blocks.clone());
        let help = "Expected duration of the fetches in fetch plans, in seconds";
        registry.register("fetch_expected_seconds", help, at.expected.clone());
        let help = "Expected time to compute the blocks of fetch plans instead, in seconds";
        registry.register("fetch_compute_seconds", help, at.compute.clone());
        let help = "Bytes fetched from peers, as reported by clients";
        registry.register("fetch_reported_bytes", help, at.bytes.clone());
        let help = "Duration of fetches from peers, as reported by clients, in seconds";
        registry.register("fetch_reported_seconds", help, at.seconds.clone());
        counters
    }

    /// Counts a decision: its outcome and, with a plan, the planned blocks and times.
    pub(crate) fn chosen(&self, fetch: &Result<FetchPlan, NoFetch>) {
        let outcome = fetch_word(fetch);
        self.outcomes.get_or_create(&OutcomeLabel { outcome }).inc();
        if let Ok(plan) = fetch {
            self.blocks.inc_by(plan.blocks.into());
            self.recompute_blocks.inc_by(plan.recompute_blocks.into());
            self.expected.inc_by(plan.expected.as_secs_f64());
            self.compute.inc_by(plan.compute.as_secs_f64());
        }
    }

    /// Counts a reported fetch.
    pub(crate) fn reported(&self, bytes: u64, took: Duration) {
        self.bytes.inc_by(bytes);
        self.seconds.inc_by(took.as_secs_f64());
    }
}

/// Converts an outcome to its label value, one of [`FETCH_OUTCOMES`].
const fn fetch_word(fetch: &Result<FetchPlan, NoFetch>) -> &'static str {
    match fetch {
        Ok(_) => "planned",
        Err(NoFetch::NotAsked) => "not_asked",
        Err(NoFetch::Complete) => "complete",
        Err(NoFetch::NoAgent) => "no_agent",
        Err(NoFetch::NoHolder) => "no_holder",
        Err(NoFetch::UnknownRate) => "unknown_rate",
        Err(NoFetch::NotFaster) => "not_faster",
    }
}
