//! Histograms of times whose buckets name a trace, so that people can look at a slow request.

use kvasir_trace::sampled;
use prometheus_client::encoding::{EncodeLabelSet, EncodeMetric, MetricEncoder};
use prometheus_client::metrics::exemplar::HistogramWithExemplars;
use prometheus_client::metrics::{MetricType, TypedMetric};
use std::fmt;
use std::time::Duration;

/// Label of an exemplar.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct TraceLabel {
    trace_id: String,
}

/// A histogram of durations in seconds. Each bucket keeps the trace id of its last observation in a sampled trace, as an
/// exemplar. Cheap to clone: clones share the buckets.
#[derive(Debug, Clone)]
pub struct TimeHistogram(HistogramWithExemplars<TraceLabel>);

impl TimeHistogram {
    /// Creates a histogram whose buckets have the upper bounds `buckets`, in seconds.
    pub fn new(buckets: impl Iterator<Item = f64>) -> Self {
        Self(HistogramWithExemplars::new(buckets))
    }

    /// Counts a duration, in the current span.
    pub fn observe(&self, took: Duration) {
        let trace = sampled().map(|id| TraceLabel { trace_id: id.to_string() });
        // Prometheus adds the time of its scrape.
        self.0.observe(took.as_secs_f64(), trace, None);
    }
}

impl TypedMetric for TimeHistogram {
    const TYPE: MetricType = MetricType::Histogram;
}

impl EncodeMetric for TimeHistogram {
    fn encode(&self, encoder: MetricEncoder<'_>) -> fmt::Result {
        self.0.encode(encoder)
    }

    fn metric_type(&self) -> MetricType {
        Self::TYPE
    }
}
