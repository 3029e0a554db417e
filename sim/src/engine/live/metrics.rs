//! Metrics of the engine, under vLLM's names.

use super::config::LiveConfig;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::Registry;
use std::fmt;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

/// Histogram bounds of the time to the first token, in seconds; vLLM's.
const FIRST_TOKEN_SECS: [f64; 22] = [
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
    20.0, 40.0, 80.0, 160.0, 640.0, 2_560.0,
];
/// Histogram bounds of the time between tokens, in seconds; vLLM's.
const BETWEEN_TOKENS_SECS: [f64; 19] = [
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0,
    40.0, 80.0,
];
/// Histogram bounds of the duration of a request, in seconds; vLLM's.
const REQUEST_SECS: [f64; 20] = [
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0,
    480.0, 960.0, 1_920.0,
];

/// Label for the end of a request.
type Reason = [(&'static str, &'static str); 1];

/// The metrics of one engine.
#[derive(Debug)]
pub struct LiveMetrics {
    registry: Registry,
    running: Gauge,
    waiting: Gauge,
    usage: Gauge<f64, AtomicU64>,
    prefix_queries: Counter,
    prefix_hits: Counter,
    external_queries: Counter,
    external_hits: Counter,
    prompt_tokens: Counter,
    generation_tokens: Counter,
    ended: Family<Reason, Counter>,
    first_token: Histogram,
    between_tokens: Histogram,
    request: Histogram,
}

/// Load of an engine.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Busy {
    pub(super) running: usize,
    pub(super) waiting: usize,
    /// Fraction of the blocks that are in use, 0 to 1.
    pub(super) usage: f64,
}

/// A request that has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Ended {
    pub(super) prompt_tokens: usize,
    pub(super) hit_tokens: usize,
    /// Tokens from another engine; `None` if the request asked for none.
    pub(super) external_tokens: Option<usize>,
    pub(super) time: Duration,
}

// === impl LiveMetrics ===

impl LiveMetrics {
    /// The metrics of a new engine.
    #[must_use]
    pub fn new(config: &LiveConfig) -> Self {
        let rank = config.engine.dp_rank.to_string();
        let labels = [("model_name", config.model_name.clone()), ("engine", rank)];
        let labels = labels.map(|(name, value)| (name.into(), value.into()));
        let mut metrics = Self {
            registry: Registry::with_labels(labels.into_iter()),
            running: Gauge::default(),
            waiting: Gauge::default(),
            usage: Gauge::default(),
            prefix_queries: Counter::default(),
            prefix_hits: Counter::default(),
            external_queries: Counter::default(),
            external_hits: Counter::default(),
            prompt_tokens: Counter::default(),
            generation_tokens: Counter::default(),
            ended: Family::default(),
            first_token: Histogram::new(FIRST_TOKEN_SECS),
            between_tokens: Histogram::new(BETWEEN_TOKENS_SECS),
            request: Histogram::new(REQUEST_SECS),
        };
        metrics.register(config);
        metrics
    }

    fn register(&mut self, config: &LiveConfig) {
        let sizes = [
            ("block_size", config.engine.block_size.to_string()),
            ("num_gpu_blocks", config.engine.capacity_blocks.to_string()),
        ];
        let at = &mut self.registry;
        at.register("vllm:cache_config", "Sizes of the cache", Info::new(sizes.to_vec()));
        at.register("vllm:num_requests_running", "Running requests", self.running.clone());
        at.register("vllm:num_requests_waiting", "Waiting requests", self.waiting.clone());
        at.register("vllm:kv_cache_usage_perc", "Used part of the blocks", self.usage.clone());
        for (name, help, counter) in [
            ("vllm:prefix_cache_queries", "Tokens looked up in the cache", &self.prefix_queries),
            ("vllm:prefix_cache_hits", "Tokens found in the cache", &self.prefix_hits),
            (
                "vllm:external_prefix_cache_queries",
                "Tokens asked of other engines",
                &self.external_queries,
            ),
            (
                "vllm:external_prefix_cache_hits",
                "Tokens that came from other engines",
                &self.external_hits,
            ),
            ("vllm:prompt_tokens", "Tokens of prompts", &self.prompt_tokens),
            ("vllm:generation_tokens", "Tokens of answers", &self.generation_tokens),
        ] {
            at.register(name, help, counter.clone());
        }
        at.register("vllm:request_success", "Requests that ended", self.ended.clone());
        for (name, help, histogram) in [
            ("vllm:time_to_first_token_seconds", "Time to the first token", &self.first_token),
            ("vllm:inter_token_latency_seconds", "Time between tokens", &self.between_tokens),
            ("vllm:e2e_request_latency_seconds", "Time of requests", &self.request),
        ] {
            at.register(name, help, histogram.clone());
        }
    }

    /// Writes the metrics in the OpenMetrics text format.
    ///
    /// # Errors
    /// Never: the text is written to memory.
    pub fn encode(&self) -> Result<String, fmt::Error> {
        let mut text = String::new();
        encode(&mut text, &self.registry)?;
        Ok(text)
    }

    pub(super) fn set_busy(&self, busy: Busy) {
        self.running.set(busy.running as i64);
        self.waiting.set(busy.waiting as i64);
        self.usage.set(busy.usage);
    }

    /// Records the first token of a request, with the time since the request arrived.
    pub(super) fn first_token(&self, time: Duration) {
        self.first_token.observe(time.as_secs_f64());
        self.generation_tokens.inc();
    }

    /// Records a further token, with the time since the previous one.
    pub(super) fn further_token(&self, time: Duration) {
        self.between_tokens.observe(time.as_secs_f64());
        self.generation_tokens.inc();
    }

    pub(super) fn ended(&self, ended: Ended, reason: &'static str) {
        self.ended.get_or_create(&[("finished_reason", reason)]).inc();
        self.request.observe(ended.time.as_secs_f64());
        self.prompt_tokens.inc_by(ended.prompt_tokens as u64);
        self.prefix_queries.inc_by(ended.prompt_tokens as u64);
        self.prefix_hits.inc_by(ended.hit_tokens as u64);
        if let Some(tokens) = ended.external_tokens {
            self.external_queries.inc_by((ended.prompt_tokens - ended.hit_tokens) as u64);
            self.external_hits.inc_by(tokens as u64);
        }
    }

    pub(super) fn cancelled(&self) {
        self.ended.get_or_create(&[("finished_reason", "abort")]).inc();
    }
}
