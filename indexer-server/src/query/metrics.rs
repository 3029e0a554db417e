use kvasir_process::telemetry::TimeHistogram;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};
use std::time::Duration;

/// Metrics of the lookups.
#[derive(Debug, Clone)]
pub struct QueryMetrics {
    /// Queries answered.
    pub queries: Counter,
    /// Total blocks of all queries: the denominator of the hit rate.
    pub query_blocks: Counter,
    /// Matched blocks of the best worker, summed over all queries: the numerator of the hit rate.
    pub hit_blocks: Counter,
    latency: TimeHistogram,
    matched: Histogram,
}

impl QueryMetrics {
    /// Registers the metrics.
    #[must_use]
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self {
            queries: Counter::default(),
            query_blocks: Counter::default(),
            hit_blocks: Counter::default(),
            // From a short hit (0.25 us) to a lookup that waited for many critical sections (0.26 s).
            latency: TimeHistogram::new((0..21).map(|step| 0.25e-6 * f64::from(1_u32 << step))),
            // From one block to the longest chain.
            matched: Histogram::new(
                std::iter::once(0.0).chain((0..17).map(|step| f64::from(1_u32 << step))),
            ),
        };
        registry.register("queries", "FindMatches queries answered", metrics.queries.clone());
        registry.register(
            "query_blocks",
            "Blocks in the prompts of all FindMatches queries: denominator of the hit rate",
            metrics.query_blocks.clone(),
        );
        registry.register(
            "hit_blocks",
            "Blocks matched by the best worker of each FindMatches query: numerator of the hit rate",
            metrics.hit_blocks.clone(),
        );
        registry.register_with_unit(
            "lookup",
            "Duration of a FindMatches lookup: hashing, waiting for the lock, search and answer",
            Unit::Seconds,
            metrics.latency.clone(),
        );
        registry.register_with_unit(
            "matched_length",
            "Leading blocks matched by the best worker of a FindMatches query",
            Unit::Other("blocks".to_owned()),
            metrics.matched.clone(),
        );
        metrics
    }

    pub(super) fn count(&self, requested: u32, hit: u32, took: Duration) {
        self.queries.inc();
        self.query_blocks.inc_by(u64::from(requested));
        self.hit_blocks.inc_by(u64::from(hit));
        self.latency.observe(took);
        self.matched.observe(f64::from(hit));
    }
}
