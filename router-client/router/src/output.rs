//! Latency of answers, from reports of the serving process: time to first token, time between tokens, number of tokens.

use kvasir_process::telemetry::TimeHistogram;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;
use tokio::time::Instant;

/// Histograms of all answers. Cheap to clone.
#[derive(Debug, Clone)]
pub struct OutputMetrics {
    time_to_first_token: TimeHistogram,
    inter_token_latency: Histogram,
    output_tokens: Histogram,
}

/// Latency of one answer.
#[derive(Debug, Clone, Copy)]
pub struct Pace {
    began: Instant,
    /// Time and token count of the last report. `None` before the first token.
    last: Option<(Instant, u64)>,
}

impl OutputMetrics {
    /// Creates and registers all histograms; their names begin with `prefix`.
    #[must_use]
    pub fn registered(registry: &mut Registry, prefix: &str) -> Self {
        let registry = registry.sub_registry_with_prefix(prefix);
        let metrics = Self {
            time_to_first_token: TimeHistogram::new(exponential_buckets(0.001, 2.0, 20)),
            inter_token_latency: Histogram::new(exponential_buckets(0.000_25, 2.0, 18)),
            output_tokens: Histogram::new(exponential_buckets(1.0, 4.0, 9)),
        };
        let help = "Time from a request to the first token of the answer, in seconds";
        registry.register("time_to_first_token_seconds", help, metrics.time_to_first_token.clone());
        let help = "Time between two output tokens, in seconds: the mean over the tokens between two reports";
        registry.register("inter_token_latency_seconds", help, metrics.inter_token_latency.clone());
        registry.register(
            "output_tokens",
            "Output tokens of an answer",
            metrics.output_tokens.clone(),
        );
        metrics
    }

    /// Records the total tokens of a finished answer.
    pub fn ended(&self, tokens: u64) {
        self.output_tokens.observe(tokens as f64);
    }
}

impl Pace {
    /// Starts a request that arrived at `began`.
    #[must_use]
    pub const fn new(began: Instant) -> Self {
        Self { began, last: None }
    }

    /// Reports the first token. Only the first report counts.
    pub fn first_token(&mut self, metrics: &OutputMetrics) {
        self.tokens(1, metrics);
    }

    /// Reports the total number of tokens so far. Ignores a total that has not grown.
    pub fn tokens(&mut self, tokens: u64, metrics: &OutputMetrics) {
        let now = Instant::now();
        match self.last {
            None if tokens > 0 => {
                let time = now.saturating_duration_since(self.began);
                metrics.time_to_first_token.observe(time);
            }
            Some((last, before)) if tokens > before => {
                let time = now.saturating_duration_since(last).as_secs_f64();
                metrics.inter_token_latency.observe(time / (tokens - before) as f64);
            }
            None | Some(_) => return,
        }
        self.last = Some((now, tokens));
    }

    /// Token count of the last report.
    #[must_use]
    pub fn reported(&self) -> u64 {
        self.last.map_or(0, |(_, tokens)| tokens)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use prometheus_client::encoding::text::encode;
    use std::time::Duration;
    use tokio::time::advance;

    #[tokio::test(start_paused = true)]
    async fn times_are_those_between_reports() {
        let mut registry = Registry::default();
        let metrics = OutputMetrics::registered(&mut registry, "router");
        let mut pace = Pace::new(Instant::now());
        pace.tokens(0, &metrics);
        advance(Duration::from_millis(300)).await;
        pace.first_token(&metrics);
        pace.first_token(&metrics);
        advance(Duration::from_millis(100)).await;
        pace.tokens(11, &metrics);
        // A late report with fewer tokens is ignored.
        pace.tokens(7, &metrics);
        metrics.ended(pace.reported());
        let mut text = String::new();
        encode(&mut text, &registry).expect("a text");
        for line in [
            "router_time_to_first_token_seconds_sum 0.3",
            "router_time_to_first_token_seconds_count 1",
            "router_inter_token_latency_seconds_sum 0.01",
            "router_inter_token_latency_seconds_count 1",
            "router_output_tokens_sum 11.0",
        ] {
            assert!(text.contains(line), "{line} in {text}");
        }
    }
}
