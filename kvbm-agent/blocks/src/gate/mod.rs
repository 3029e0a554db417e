//! Load a cached block from a lower tier, or compute it again: which is faster.

use crate::plan::Route;
use std::collections::BTreeMap;
use std::time::Duration;

#[cfg(test)]
mod gate_test;

/// How a [`Gate`] measures.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct GateConfig {
    /// Weight of a new measurement in the mean, over 0 and up to 1.
    pub weight: f64,
    /// Age after which a bandwidth counts as unknown: then a load measures it again.
    pub measured_age_max: Duration,
}

impl GateConfig {
    /// Each measurement weighs a fifth; after a minute it is forgotten.
    pub const DEFAULT: Self = Self { weight: 0.2, measured_age_max: Duration::from_secs(60) };
}

/// What a verdict rests on.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct GateInputs {
    /// How the blocks would be loaded.
    pub route: Route,
    /// Bytes to load.
    pub load_bytes: u64,
    /// Bytes that are loaded or wait on this route already.
    pub queued_bytes: u64,
    /// Tokens that would have to be computed instead.
    pub tokens: u64,
    /// Tokens that the engine computes a second while it prefills; 0 if that is unknown.
    pub prefill_tokens_per_second: f64,
    /// Time that a request waits before its prefill begins.
    pub prefill_wait: Duration,
}

/// The answer, with all that led to it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct GateVerdict {
    /// Load if true, else compute.
    pub is_load: bool,
    /// Expected time to load; none if the bandwidth is unknown.
    pub load: Option<Duration>,
    /// Expected time to compute; none if the prefill rate is unknown.
    pub compute: Option<Duration>,
    /// Measured bandwidth, in bytes a second.
    pub bytes_per_second: Option<f64>,
    /// What was asked.
    pub inputs: GateInputs,
}

#[derive(Debug, Clone, Copy)]
struct Measured {
    bytes_per_second: f64,
    at: Duration,
}

/// Knows the bandwidth of each route, as transfers show it.
#[derive(Debug)]
pub struct Gate {
    config: GateConfig,
    routes: BTreeMap<Route, Measured>,
}

impl Gate {
    /// One that has measured nothing.
    #[must_use]
    pub const fn new(config: GateConfig) -> Self {
        Self { config, routes: BTreeMap::new() }
    }

    /// Takes a measurement: `bytes` came in `took`. One without bytes or time says nothing.
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

    /// Measured bandwidth of a route, in bytes a second; none if it was not measured of late.
    #[must_use]
    pub fn bytes_per_second(&self, route: Route, now: Duration) -> Option<f64> {
        let measured = self.routes.get(&route)?;
        let age = now.saturating_sub(measured.at);
        (age <= self.config.measured_age_max).then_some(measured.bytes_per_second)
    }

    /// Decides. What is unknown is decided for loading: that measures it.
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
