//! Sizes and times of an engine in real time.

use crate::engine::mock::EngineConfig;
use crate::engine::scheduler::{RUNNING_REQUESTS_MAX, STEP_TOKENS_MAX};
use crate::engine::timed::{EngineOptions, StepModel, TransferModel};
use std::time::Duration;

/// Most requests that wait or run unless configured otherwise.
const REQUESTS_MAX: usize = 4_096;
/// How long blocks are held for another engine unless configured otherwise; vLLM's is 480 s.
const HOLD_TIMEOUT: Duration = Duration::from_secs(480);

/// Configuration of an engine in real time.
#[derive(Debug, Clone, PartialEq)]
pub struct LiveConfig {
    /// Its cache and its publisher. A sliding window is refused.
    pub engine: EngineConfig,
    /// The name of the model, for metrics.
    pub model_name: String,
    /// How long steps take.
    pub model: StepModel,
    /// How long transfers from other engines take.
    pub transfer: TransferModel,
    /// Most tokens that one step computes; at least `running_max`.
    pub step_tokens_max: usize,
    /// Most requests that run at once.
    pub running_max: usize,
    /// So many times faster than the model goes everything; more than 0.
    pub time_scale: f64,
    /// Most requests that wait or run; more are refused.
    pub requests_max: usize,
    /// How long blocks are held for another engine, in real time.
    pub hold_timeout: Duration,
}

// === impl LiveConfig ===

impl Default for LiveConfig {
    fn default() -> Self {
        Self {
            engine: EngineConfig::default(),
            model_name: "mock".to_owned(),
            model: StepModel::default(),
            transfer: TransferModel::default(),
            step_tokens_max: STEP_TOKENS_MAX,
            running_max: RUNNING_REQUESTS_MAX,
            time_scale: 1.0,
            requests_max: REQUESTS_MAX,
            hold_timeout: HOLD_TIMEOUT,
        }
    }
}

impl LiveConfig {
    /// Tokens of its cache.
    #[must_use]
    pub fn cache_tokens(&self) -> usize {
        self.engine.capacity_blocks * self.engine.block_size
    }

    /// The machine that it asks for.
    pub(super) const fn options(&self) -> EngineOptions {
        EngineOptions {
            model: self.model,
            block_size: self.engine.block_size,
            capacity_blocks: self.engine.capacity_blocks,
            host_blocks: 0,
            disk_blocks: 0,
            step_tokens_max: self.step_tokens_max,
            running_max: self.running_max,
        }
    }

    /// Why it cannot be used, if it cannot.
    pub(super) fn problem(&self) -> Option<&'static str> {
        let is_scale = self.time_scale.is_finite() && self.time_scale > 0.0;
        [
            (self.engine.sliding_window.is_some(), "a sliding window has no model of time"),
            (self.engine.block_size == 0, "blocks have no tokens"),
            (self.engine.capacity_blocks == 0, "the cache has no blocks"),
            (self.running_max == 0, "no request may run"),
            (self.step_tokens_max < self.running_max, "a step has no token for each request"),
            (self.model.step == 0, "a step takes no time"),
            (!is_scale, "the time scale is not above 0"),
        ]
        .into_iter()
        .find_map(|(is_wrong, problem)| is_wrong.then_some(problem))
    }
}
