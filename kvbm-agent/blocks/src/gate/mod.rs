//! Decides whether to load a cached block from a lower tier or to compute it again: whichever is faster.

use crate::plan::Route;
use std::collections::BTreeMap;
use std::time::Duration;

#[cfg(test)]
mod gate_test;

/// How a [`Gate`] averages measured bandwidths.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct GateConfig {
    /// Weight of a new measurement in the moving average: more than 0, at most 1.
    pub weight: f64,
    /// Age after which a bandwidth counts as unknown. The next load then measures it again.
    pub measured_age_max: Duration,
}

impl GateConfig {
    /// Each measurement weighs 0.2 and expires after 60 s.
    pub const DEFAULT: Self = Self { weight: 0.2, measured_age_max: Duration::from_secs(60) };
}

/// The inputs of a decision.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct GateInputs {
    /// The route on which the blocks would be loaded.
    pub route: Route,
    /// Bytes to load.
    pub load_bytes: u64,
    /// Bytes already queued or in transfer on this route.
    pub queued_bytes: u64,
    /// Tokens that the engine would have to compute instead.
    pub tokens: u64,
    /// The engine's prefill rate, in tokens a second; 0 if unknown.
    pub prefill_tokens_per_second: f64,
    /// How long a request waits before its prefill begins.
    pub prefill_wait: Duration,
}

/// A decision with the estimates that led to it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct GateVerdict {
    /// True to load, false to compute.
    pub is_load: bool,
    /// Expected time to load; `None` if the bandwidth is unknown.
    pub load: Option<Duration>,
    /// Expected time to compute; `None` if the prefill rate is unknown.
    pub compute: Option<Duration>,
    /// Measured bandwidth, in bytes a second.
    pub bytes_per_second: Option<f64>,
    /// The inputs of the decision.
    pub inputs: GateInputs,
}

#[derive(Debug, Clone, Copy)]
struct Measured {
    bytes_per_second: f64,
    at: Duration,
}

/// Estimates the bandwidth of each route from finished transfers (exponential moving average).
#[derive(Debug)]
pub struct Gate {
    config: GateConfig,
    routes: BTreeMap<Route, Measured>,
}

impl Gate {
    /// Creates a gate without measurements.
    #[must_use]
    pub const fn new(config: GateConfig) -> Self {
        Self { config, routes: BTreeMap::new() }
    }

    /// Records that a transfer of `bytes` bytes took `took`. Ignores transfers of 0 bytes or 0 time.
    pub fn measure(&mut self, route: Route, bytes: u64, took: Duration, now: Duration) {
        let seconds = took.as_secs_f64();
        if bytes == 0 || seconds <= 0.0 {
            return;
        }
        let rate = as_f64(bytes) / seconds;
        let before = self.routes.get(&route).map(|measured| measured.bytes_per_second);
        let mean = before.map_or(rate, |before| before + self.config.weight * (rate - before));
        self.routes.insert(route, Measured { bytes_per_second: mean, at: now });
    }

    /// Returns the measured bandwidth of a route, in bytes a second; `None` without a recent measurement.
    #[must_use]
    pub fn bytes_per_second(&self, route: Route, now: Duration) -> Option<f64> {
        let measured = self.routes.get(&route)?;
        let age = now.saturating_sub(measured.at);
        (age <= self.config.measured_age_max).then_some(measured.bytes_per_second)
    }

    /// Decides whether to load or to compute. If the bandwidth or the prefill rate is unknown, it decides to load,
    /// which measures the bandwidth.
    #[must_use]
    pub fn decide(&self, inputs: GateInputs, now: Duration) -> GateVerdict {
        let bytes_per_second = self.bytes_per_second(inputs.route, now);
        let bytes = inputs.load_bytes.saturating_add(inputs.queued_bytes);
        let load = bytes_per_second.map(|rate| seconds(as_f64(bytes) / rate));
        let rate = inputs.prefill_tokens_per_second;
        let compute = (rate > 0.0)
            .then(|| seconds(as_f64(inputs.tokens) / rate).saturating_add(inputs.prefill_wait));
        let is_load = match (load, compute) {
            (Some(load), Some(compute)) => load <= compute,
            _ => true,
        };
        GateVerdict { is_load, load, compute, bytes_per_second, inputs }
    }
}

fn seconds(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX)
}

const fn as_f64(value: u64) -> f64 {
    value as f64
}
