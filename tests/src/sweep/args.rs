//! The command line.

use super::router::ClusterOptions;
use crate::engine::scheduler::{RUNNING_REQUESTS_MAX, STEP_TOKENS_MAX};
use crate::engine::timed::model::{
    CACHE_TOKENS, CONTEXT_TOKEN_NANOS, DECODE_SEQUENCE_NANOS, EngineOptions, Nanos,
    PREFILL_TOKEN_NANOS, STEP_NANOS, StepModel,
};
use crate::workload::trace::HASH_ID_TOKENS;
use anyhow::{Result, ensure};
use router_client::route::CostConfig;
use std::path::PathBuf;

/// Requests, seeds and loads of the short form.
const SHORT: (usize, u64, [f64; 2]) = (600, 2, [50.0, 70.0]);

/// Compares ways of routing on a workload, in virtual time: mock engines with exact caches and a stated model of step
/// times, the real index and the real router, at shares of the load that engines keep up with in turn. Prints a
/// table and where kv does not win; Ctrl-C ends it. The times of the engines are assumptions: compare rows, and
/// do not read them as those of any hardware.
#[derive(Debug, Clone, PartialEq, clap::Parser)]
#[command(name = "sweep")]
pub struct Args {
    /// Trace in the Mooncake JSONL form; without it, generated conversations.
    #[arg(long, value_name = "FILE")]
    pub trace: Option<PathBuf>,
    /// Folder for plots (SVG) and all points (CSV), which is made if it is not there.
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// A quick look: 600 requests, 2 seeds and loads of 50 and 70 %, which takes seconds.
    #[arg(long)]
    pub short: bool,
    /// Requests of each run; a trace has a window of so many, from a place that the seed picks.
    #[arg(long, value_name = "N", default_value_t = 4_000)]
    pub requests: usize,
    /// Number of seeds, from 1. A seed picks the window and the moments of arrival, or the generated workload.
    #[arg(long, value_name = "N", default_value_t = 5)]
    pub seeds: u64,
    /// Loads, in percent of the highest rate of arrivals with which round-robin keeps up.
    #[arg(long, value_name = "PERCENT", value_delimiter = ',', default_values_t = [30.0, 50.0, 70.0, 85.0])]
    pub loads: Vec<f64>,
    /// How late the index hears of the caches, in milliseconds: kv runs with each of these.
    #[arg(long, value_name = "MS", value_delimiter = ',', default_values_t = [0, 100, 1_000])]
    pub staleness_ms: Vec<u64>,
    /// Weight of prefill against blocks in use in kv's cost; the default is the router's.
    #[arg(long, value_name = "WEIGHT", default_value_t = CostConfig::default().overlap_score_weight)]
    pub overlap_weight: f64,
    /// Weight of earlier requests' prefill in kv's cost; the default is the router's.
    #[arg(long, value_name = "WEIGHT", default_value_t = CostConfig::default().active_prefill_weight)]
    pub active_prefill_weight: f64,
    /// Threads that run points.
    #[arg(long, value_name = "N", default_value_t = 2)]
    pub threads: usize,
    /// Engines.
    #[arg(long, value_name = "N", default_value_t = 8)]
    pub engines: usize,
    /// Tokens per block; it divides 512.
    #[arg(long, value_name = "TOKENS", default_value_t = 64)]
    pub block_size: usize,
    /// Tokens that the cache of an engine holds: what a model of 8 billion parameters leaves of 80 GB.
    #[arg(long, value_name = "TOKENS", default_value_t = CACHE_TOKENS)]
    pub cache_tokens: usize,
    /// Most tokens that a step computes.
    #[arg(long, value_name = "TOKENS", default_value_t = STEP_TOKENS_MAX)]
    pub step_tokens_max: usize,
    /// Most requests that run at once on an engine.
    #[arg(long, value_name = "N", default_value_t = RUNNING_REQUESTS_MAX)]
    pub running_max: usize,
    /// Time of a step, whatever it computes, in nanoseconds.
    #[arg(long, value_name = "NS", default_value_t = STEP_NANOS)]
    pub step_ns: Nanos,
    /// Time of each prompt token of a step, in nanoseconds.
    #[arg(long, value_name = "NS", default_value_t = PREFILL_TOKEN_NANOS)]
    pub prefill_token_ns: Nanos,
    /// Time of each sequence that decodes in a step, in nanoseconds.
    #[arg(long, value_name = "NS", default_value_t = DECODE_SEQUENCE_NANOS)]
    pub decode_sequence_ns: Nanos,
    /// Time of each token of context that a step reads, in nanoseconds.
    #[arg(long, value_name = "NS", default_value_t = CONTEXT_TOKEN_NANOS)]
    pub context_token_ns: Nanos,
}

// === impl Args ===

impl Args {
    /// The same, with what the short form sets.
    #[must_use]
    pub fn shortened(self) -> Self {
        let (requests, seeds, loads) = SHORT;
        match self.short {
            true => Self { requests, seeds, loads: loads.to_vec(), ..self },
            false => self,
        }
    }

    /// Whether all can be used together.
    ///
    /// # Errors
    /// If one cannot, with its name.
    pub fn check(&self) -> Result<()> {
        let divides = self.block_size > 0 && HASH_ID_TOKENS.is_multiple_of(self.block_size);
        ensure!(divides, "--block-size must divide {HASH_ID_TOKENS}");
        ensure!((1..=1_024).contains(&self.engines), "--engines must be 1 to 1024");
        ensure!((1..=20).contains(&self.seeds), "--seeds must be 1 to 20");
        ensure!((1..=256).contains(&self.threads), "--threads must be 1 to 256");
        ensure!((20..=10_000_000).contains(&self.requests), "--requests must be 20 to 10000000");
        ensure!(!self.loads.is_empty(), "--loads must name one");
        let are_loads = self.loads.iter().all(|load| (1.0..=200.0).contains(load));
        ensure!(are_loads, "--loads must be 1 to 200");
        ensure!(!self.staleness_ms.is_empty(), "--staleness-ms must name one");
        let are_short = self.staleness_ms.iter().all(|&ms| ms <= 3_600_000);
        ensure!(are_short, "--staleness-ms must be at most 3600000");
        ensure!(self.running_max > 0, "--running-max must be at least 1");
        let has_room = self.step_tokens_max >= self.running_max;
        ensure!(has_room, "--step-tokens-max must be at least --running-max");
        let times = [self.prefill_token_ns, self.decode_sequence_ns, self.context_token_ns];
        let are_times = times.iter().all(|&ns| ns <= 1_000_000_000);
        ensure!(
            are_times && (1..=1_000_000_000).contains(&self.step_ns),
            "a time is too long or 0"
        );
        let blocks = self.cache_tokens / self.block_size;
        ensure!((1..=10_000_000).contains(&blocks), "--cache-tokens must be 1 to 10000000 blocks");
        Ok(self.cost().check()?)
    }

    /// The cost that these ask for.
    fn cost(&self) -> CostConfig {
        CostConfig {
            overlap_score_weight: self.overlap_weight,
            active_prefill_weight: self.active_prefill_weight,
            ..CostConfig::default()
        }
    }

    /// The engines that these ask for.
    #[must_use]
    pub fn cluster(&self) -> ClusterOptions {
        let model = StepModel {
            step: self.step_ns,
            prefill_token: self.prefill_token_ns,
            decode_sequence: self.decode_sequence_ns,
            context_token: self.context_token_ns,
        };
        let engine = EngineOptions {
            model,
            block_size: self.block_size,
            capacity_blocks: self.cache_tokens / self.block_size,
            step_tokens_max: self.step_tokens_max,
            running_max: self.running_max,
        };
        ClusterOptions { engines: self.engines, engine, cost: self.cost() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::{CommandFactory, Parser};

    #[test]
    fn the_definition_is_sound() {
        Args::command().debug_assert();
        Args::parse_from(["sweep"]).check().expect("the defaults");
    }

    #[test]
    fn wrong_values_are_refused_by_name() {
        for (option, value) in [
            ("--block-size", "48"),
            ("--engines", "0"),
            ("--seeds", "0"),
            ("--loads", "0"),
            ("--step-tokens-max", "100"),
            ("--cache-tokens", "1"),
        ] {
            let args = Args::parse_from(["sweep", option, value]);
            let error = args.check().expect_err(option).to_string();
            assert!(error.contains(option), "{option}: {error}");
        }
    }
}
