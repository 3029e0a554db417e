//! Sizes and times of an engine in real time.

use crate::engine::mock::EngineConfig;
use crate::engine::scheduler::{RUNNING_REQUESTS_MAX, STEP_TOKENS_MAX};
use crate::engine::timed::{EngineOptions, StepModel, TransferModel};
use std::time::Duration;

/// Default maximum number of waiting and running requests.
const REQUESTS_MAX: usize = 4_096;
/// Default time for which blocks are kept for another engine; 480 s, as in vLLM.
const HOLD_TIMEOUT: Duration = Duration::from_secs(480);

/// Configuration of an engine in real time.
#[derive(Debug, Clone, PartialEq)]
pub struct LiveConfig {
    /// Cache and publisher of the engine. A sliding window is rejected.
    pub engine: EngineConfig,
    /// Name of the model, for metrics.
    pub model_name: String,
    /// Duration of steps.
    pub model: StepModel,
    /// Duration of transfers from other engines.
    pub transfer: TransferModel,
    /// Maximum number of tokens that a step computes; at least `running_max`.
    pub step_tokens_max: usize,
    /// Maximum number of requests that run concurrently.
    pub running_max: usize,
    /// Factor by which everything is faster than the model; more than 0.
    pub time_scale: f64,
    /// Maximum number of waiting and running requests. Further requests are rejected.
    pub requests_max: usize,
    /// How long blocks are kept for another engine, in real time.
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
    /// Size of the cache, in tokens.
    #[must_use]
    pub fn cache_tokens(&self) -> usize {
        self.engine.capacity_blocks * self.engine.block_size
    }

    /// Options of the machine.
    pub(super) const fn options(&self) -> EngineOptions {
        EngineOptions {
            model: self.model,
            block_size: self.engine.block_size,
            capacity_blocks: self.engine.capacity_blocks,
            host_blocks: 0,
            disk_blocks: 0,
            state_slots: 0,
            step_tokens_max: self.step_tokens_max,
            running_max: self.running_max,
        }
    }

    /// Why the configuration is invalid; none if it is valid.
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
