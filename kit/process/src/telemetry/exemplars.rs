//! Histograms of times whose buckets name a trace, so that people can look at a slow request.

use super::trace::exports;
use kvasir_trace::sampled;
use prometheus_client::encoding::{EncodeLabelSet, EncodeMetric, MetricEncoder};
use prometheus_client::metrics::exemplar::HistogramWithExemplars;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::metrics::{MetricType, TypedMetric};
use std::fmt;
use std::time::Duration;

/// Label of an exemplar.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct TraceLabel {
    trace_id: String,
}

/// A histogram of durations in seconds. If the process exports spans, each bucket keeps the trace id of its last
/// observation in a sampled trace, as an exemplar. Cheap to clone: clones share the buckets.
#[derive(Debug, Clone)]
pub struct TimeHistogram(Kind);

/// Exemplars need a second lock.
#[derive(Debug, Clone)]
enum Kind {
    Plain(Histogram),
    Traced(HistogramWithExemplars<TraceLabel>),
}

impl TimeHistogram {
    /// Creates a histogram whose buckets have the upper bounds `buckets`, in seconds.
    pub fn new(buckets: impl Iterator<Item = f64>) -> Self {
        Self(match exports() {
            true => Kind::Traced(HistogramWithExemplars::new(buckets)),
            false => Kind::Plain(Histogram::new(buckets)),
        })
    }

    /// Counts a duration, in the current span.
    pub fn observe(&self, took: Duration) {
        let seconds = took.as_secs_f64();
        match &self.0 {
            Kind::Plain(histogram) => histogram.observe(seconds),
            Kind::Traced(histogram) => {
                let trace = sampled().map(|id| TraceLabel { trace_id: id.to_string() });
                // Prometheus adds the time of its scrape.
                histogram.observe(seconds, trace, None);
            }
        }
    }
}

impl TypedMetric for TimeHistogram {
    const TYPE: MetricType = MetricType::Histogram;
}

impl EncodeMetric for TimeHistogram {
    fn encode(&self, encoder: MetricEncoder<'_>) -> fmt::Result {
        match &self.0 {
            Kind::Plain(histogram) => histogram.encode(encoder),
            Kind::Traced(histogram) => histogram.encode(encoder),
        }
    }

    fn metric_type(&self) -> MetricType {
        Self::TYPE
    }
}
