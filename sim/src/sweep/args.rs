//! The command line of the sweep.

use super::change::WhatIf;
use super::job::Source;
use super::options::{ClusterOptions, SYNC_NANOS};
use crate::engine::scheduler::{RUNNING_REQUESTS_MAX, STEP_TOKENS_MAX};
use crate::engine::timed::model::{
    CACHE_TOKENS, CONTEXT_TOKEN_NANOS, DECODE_SEQUENCE_NANOS, DISK_TOKEN_NANOS, HOST_TOKEN_NANOS,
    PREFILL_TOKEN_NANOS, STEP_NANOS, TRANSFER_NANOS, TRANSFER_TOKEN_NANOS,
};
use crate::engine::timed::{EngineOptions, Nanos, StepModel, TransferModel};
use anyhow::{Result, ensure};
use router_client::route::CostConfig;
use std::path::PathBuf;

/// Tokens per block, unless a recorded trace has others.
const BLOCK_TOKENS: usize = 64;
/// Requests, seeds and loads of the short form.
const SHORT: (usize, u64, [f64; 2]) = (600, 2, [50.0, 70.0]);
/// Requests and engines of the short form with processes.
const SHORT_PROCESSES: (usize, usize) = (60, 2);
/// Maximum number of requests with processes, because all of them are created in advance.
const PROCESSES_REQUESTS_MAX: usize = 20_000;

/// A workload that is generated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Generated {
    /// Conversations with the statistics of a production trace.
    Conversations,
    /// One document that all ask about.
    Document,
    /// Agents that call tools, and plain requests.
    Agents,
    /// Requests with one of 24 prefixes of 900 tokens.
    Prefixes,
    /// Sessions of 8 turns over one system prompt, one request at a time at the workload's own rate (--what-if).
    Paced,
}

/// Compares routing modes on workloads, in virtual time. Each run has mock engines with exact caches and a model of
/// step times, the real index and the real router, at fractions of the load that round-robin sustains. The sweep prints
/// a table, and where kv does not win; Ctrl-C ends it. The times of the engines are assumptions: compare rows, and do
/// not read them as measurements of any hardware. With --what-if, it estimates the effect of changes, at the workload's
/// own rate.
#[derive(Debug, Clone, PartialEq, clap::Parser)]
#[command(name = "sweep")]
pub struct Args {
    /// Mooncake JSONL trace, or a recording of the router or gateway. If not set: generated workloads.
    #[arg(long, value_name = "FILE")]
    pub trace: Option<PathBuf>,
    /// Model of the trace whose requests are used. Required if the trace has several models.
    #[arg(long, value_name = "NAME", requires = "trace")]
    pub model: Option<String>,
    /// Generated workloads, separated by commas. If not set: all but paced; with --processes, only conversations.
    /// Excludes --trace.
    #[arg(long, value_name = "NAME", value_delimiter = ',', conflicts_with = "trace")]
    pub workload: Vec<Generated>,
    /// Changes whose effect to estimate, separated by commas, such as workers=+2,cache=2x. Repeat the flag for more
    /// rows. Names: workers, cache, host, disk (=2x, =+2, =12), no-host, no-disk, weight, load-weight,
    /// unstated-capacity, traffic, routers, staleness-ms, prefill-workers, policy.
    #[arg(long, value_name = "CHANGES")]
    pub what_if: Vec<WhatIf>,
    /// Repeat one point with real processes in real time. The value is the load in percent [default: 70]. The sweep
    /// runs engines, index, router and clients with kv and round-robin, seed 1, and compares the results with virtual
    /// time. It fails if the mean time to the first token or the hit tokens deviate by more than 10 %, or if the
    /// machine is too busy to measure. 4,000 requests take about 20 minutes.
    #[arg(
        long,
        value_name = "LOAD",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "70",
        conflicts_with_all = ["what_if", "out"]
    )]
    pub processes: Option<f64>,
    /// Factor by which engines are faster than the step model. Requires --processes.
    #[arg(long, value_name = "FACTOR", default_value_t = 1.0, requires = "processes")]
    pub time_scale: f64,
    /// Folder for plots (SVG) and all points (CSV), created if missing.
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Quick run of a few seconds. 600 requests, 2 seeds, loads of 50 and 70 %. With --processes: 60 requests and 2
    /// engines.
    #[arg(long)]
    pub short: bool,
    /// Requests of each run. Of a trace, the seed chooses a window of this length.
    #[arg(long, value_name = "N", default_value_t = 4_000)]
    pub requests: usize,
    /// Number of seeds, counted from 1. A seed chooses the trace's window and the times of arrival, or the generated
    /// workload.
    #[arg(long, value_name = "N", default_value_t = 5)]
    pub seeds: u64,
    /// Loads, in percent of the highest arrival rate that round-robin sustains.
    #[arg(long, value_name = "PERCENT", value_delimiter = ',', default_values_t = [30.0, 50.0, 70.0, 85.0])]
    pub loads: Vec<f64>,
    /// Delays of the index behind the caches, in milliseconds. kv runs with each delay.
    #[arg(long, value_name = "MS", value_delimiter = ',', default_values_t = [0, 100, 1_000])]
    pub staleness_ms: Vec<u64>,
    /// Weight of prefill against blocks in use in kv's cost. The default is the router's.
    #[arg(long, value_name = "WEIGHT", default_value_t = CostConfig::default().overlap_score_weight)]
    pub overlap_weight: f64,
    /// Weight of earlier requests' prefill in kv's cost. The default is the router's.
    #[arg(long, value_name = "WEIGHT", default_value_t = CostConfig::default().active_prefill_weight)]
    pub active_prefill_weight: f64,
    /// Hide the engines' number of blocks from routers.
    #[arg(long)]
    pub unstated_capacity: bool,
    /// Number of threads that run points.
    #[arg(long, value_name = "N", default_value_t = 2)]
    pub threads: usize,
    /// Number of engines.
    #[arg(long, value_name = "N", default_value_t = 8)]
    pub engines: usize,
    /// Engines that only compute prompts, in runs that separate prefill [default: 5/8 of --engines].
    #[arg(long, value_name = "N")]
    pub prefill_engines: Option<usize>,
    /// Number of router replicas, in runs with several routers.
    #[arg(long, value_name = "N", default_value_t = 3)]
    pub routers: usize,
    /// Tokens per block [default: 64, or the size in a recorded trace]. The size must divide a trace's tokens per hash
    /// id.
    #[arg(long, value_name = "TOKENS")]
    pub block_size: Option<usize>,
    /// Size of an engine's host memory cache, in tokens.
    #[arg(long, value_name = "TOKENS", default_value_t = 0)]
    pub host_tokens: usize,
    /// Size of an engine's disk cache, in tokens.
    #[arg(long, value_name = "TOKENS", default_value_t = 0)]
    pub disk_tokens: usize,
    /// Size of an engine's cache, in tokens. The default is the memory that a model of 8 billion parameters leaves of
    /// 80 GB.
    #[arg(long, value_name = "TOKENS", default_value_t = CACHE_TOKENS)]
    pub cache_tokens: usize,
    /// Number of states that each engine keeps, for a model with state layers (Mamba): a prompt is resumed only where a
    /// state was kept. 0 for a model without such layers. Adds the row kv-main-group, which counts full attention alone.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub state_slots: usize,
    /// Maximum number of tokens that a step computes.
    #[arg(long, value_name = "TOKENS", default_value_t = STEP_TOKENS_MAX)]
    pub step_tokens_max: usize,
    /// Maximum number of requests that run concurrently on an engine.
    #[arg(long, value_name = "N", default_value_t = RUNNING_REQUESTS_MAX)]
    pub running_max: usize,
    /// Fixed time of a step, in nanoseconds.
    #[arg(long, value_name = "NS", default_value_t = STEP_NANOS)]
    pub step_ns: Nanos,
    /// Time per prompt token of a step, in nanoseconds.
    #[arg(long, value_name = "NS", default_value_t = PREFILL_TOKEN_NANOS)]
    pub prefill_token_ns: Nanos,
    /// Time per sequence that decodes in a step, in nanoseconds.
    #[arg(long, value_name = "NS", default_value_t = DECODE_SEQUENCE_NANOS)]
    pub decode_sequence_ns: Nanos,
    /// Time per token of context that a step reads, in nanoseconds.
    #[arg(long, value_name = "NS", default_value_t = CONTEXT_TOKEN_NANOS)]
    pub context_token_ns: Nanos,
    /// Time per token that a step fetches from host memory, in nanoseconds.
    #[arg(long, value_name = "NS", default_value_t = HOST_TOKEN_NANOS)]
    pub host_token_ns: Nanos,
    /// Time per token that a step fetches from disk, in nanoseconds.
    #[arg(long, value_name = "NS", default_value_t = DISK_TOKEN_NANOS)]
    pub disk_token_ns: Nanos,
    /// Fixed time of a transfer from prefill to decode engine, in nanoseconds.
    #[arg(long, value_name = "NS", default_value_t = TRANSFER_NANOS)]
    pub transfer_ns: Nanos,
    /// Time per token of a transfer between engines, in nanoseconds.
    #[arg(long, value_name = "NS", default_value_t = TRANSFER_TOKEN_NANOS)]
    pub transfer_token_ns: Nanos,
    /// Time of a message from one router to another, in nanoseconds.
    #[arg(long, value_name = "NS", default_value_t = SYNC_NANOS)]
    pub sync_ns: Nanos,
}

// === impl Args ===

impl Args {
    /// Applies the settings of the short form.
    #[must_use]
    pub fn shortened(self) -> Self {
        match (self.short, self.processes) {
            (true, Some(_)) => {
                let (requests, engines) = SHORT_PROCESSES;
                Self { requests, engines, ..self }
            }
            (true, None) => {
                let (requests, seeds, loads) = SHORT;
                Self { requests, seeds, loads: loads.to_vec(), ..self }
            }
            (false, _) => self,
        }
    }

    /// Checks that the options are valid and consistent.
    ///
    /// # Errors
    /// If an option is invalid. The error names it.
    pub fn check(&self) -> Result<()> {
        ensure!(self.block_size != Some(0), "--block-size must be at least 1");
        ensure!((1..=1_024).contains(&self.engines), "--engines must be 1 to 1024");
        let is_split = self.prefill_engines.is_none_or(|at| (1..self.engines).contains(&at));
        ensure!(is_split, "--prefill-engines must be at least 1 and leave engines for answers");
        ensure!((2..=64).contains(&self.routers), "--routers must be 2 to 64");
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
        let times = [
            self.prefill_token_ns,
            self.decode_sequence_ns,
            self.context_token_ns,
            self.host_token_ns,
            self.disk_token_ns,
            self.transfer_ns,
            self.transfer_token_ns,
            self.sync_ns,
        ];
        let are_times = times.iter().all(|&ns| ns <= 1_000_000_000);
        ensure!(
            are_times && (1..=1_000_000_000).contains(&self.step_ns),
            "a time is too long or 0"
        );
        if let Some(load) = self.processes {
            ensure!((1.0..=200.0).contains(&load), "--processes must be a load of 1 to 200");
            let most = PROCESSES_REQUESTS_MAX;
            ensure!(self.requests <= most, "--requests must be at most {most} with --processes");
            let has_tiers = self.host_tokens + self.disk_tokens > 0;
            ensure!(!has_tiers, "processes have no --host-tokens and no --disk-tokens");
        }
        ensure!((0.01..=100.0).contains(&self.time_scale), "--time-scale must be 0.01 to 100");
        let tiers = [self.host_tokens, self.disk_tokens];
        let are_tiers = tiers.iter().all(|&tokens| tokens <= 10_000_000_000);
        ensure!(are_tiers, "--host-tokens and --disk-tokens must be at most 10000000000");
        Ok(self.cost().check()?)
    }

    /// The cost weights of these options.
    fn cost(&self) -> CostConfig {
        CostConfig {
            overlap_score_weight: self.overlap_weight,
            active_prefill_weight: self.active_prefill_weight,
            ..CostConfig::default()
        }
    }

    /// The workloads of these options.
    ///
    /// # Errors
    /// If the trace is invalid.
    pub fn sources(&self) -> Result<Vec<Source>> {
        if let Some(path) = &self.trace {
            return Ok(vec![Source::trace(path, self.model.as_deref())?]);
        }
        let all =
            [Generated::Conversations, Generated::Document, Generated::Agents, Generated::Prefixes];
        let asked = match (self.workload.as_slice(), self.processes) {
            ([], None) => &all[..],
            // A point uses one workload.
            ([], Some(_)) => &all[..1],
            (asked, _) => asked,
        };
        let source = |at: &Generated| match at {
            Generated::Conversations => Source::Conversations,
            Generated::Document => Source::Document,
            Generated::Agents => Source::Agents,
            Generated::Prefixes => Source::Prefixes,
            Generated::Paced => Source::Paced,
        };
        Ok(asked.iter().map(source).collect())
    }

    /// Number of prefill engines, in runs with separate prefill; 0 with a single engine.
    #[must_use]
    pub fn prefill_engines(&self) -> usize {
        self.prefill_engines.unwrap_or((self.engines * 5 / 8).min(self.engines - 1))
    }

    /// The engines of these options, with a block size that suits the workload.
    ///
    /// # Errors
    /// If the block size does not suit the workload, or the cache has too few or too many blocks.
    pub fn cluster(&self, source: &Source) -> Result<ClusterOptions> {
        let ids = source.id_tokens();
        let usual = if ids.is_none_or(|ids| ids.is_multiple_of(BLOCK_TOKENS)) {
            BLOCK_TOKENS
        } else {
            ids.unwrap_or(BLOCK_TOKENS)
        };
        let block_size = self.block_size.unwrap_or(usual);
        if let Some(ids) = ids {
            ensure!(ids.is_multiple_of(block_size), "--block-size must divide {ids}");
        }
        let blocks = self.cache_tokens / block_size;
        ensure!((1..=10_000_000).contains(&blocks), "--cache-tokens must be 1 to 10000000 blocks");
        let model = StepModel {
            step: self.step_ns,
            prefill_token: self.prefill_token_ns,
            decode_sequence: self.decode_sequence_ns,
            context_token: self.context_token_ns,
            host_token: self.host_token_ns,
            disk_token: self.disk_token_ns,
        };
        let engine = EngineOptions {
            model,
            block_size,
            capacity_blocks: blocks,
            host_blocks: self.host_tokens / block_size,
            disk_blocks: self.disk_tokens / block_size,
            state_slots: self.state_slots,
            step_tokens_max: self.step_tokens_max,
            running_max: self.running_max,
        };
        let sync_delay = self.sync_ns;
        let transfer = TransferModel { begin: self.transfer_ns, token: self.transfer_token_ns };
        let engines = self.engines;
        let cost = self.cost();
        let states_capacity = !self.unstated_capacity;
        Ok(ClusterOptions { engines, engine, cost, sync_delay, transfer, states_capacity })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::trace::Entry;
    use clap::{CommandFactory, Parser};

    #[test]
    fn the_definition_is_sound() {
        Args::command().debug_assert();
        Args::parse_from(["sweep"]).check().expect("the defaults");
    }

    #[test]
    fn wrong_values_are_refused_by_name() {
        for (option, value) in [
            ("--block-size", "0"),
            ("--prefill-engines", "8"),
            ("--routers", "1"),
            ("--engines", "0"),
            ("--seeds", "0"),
            ("--loads", "0"),
            ("--step-tokens-max", "100"),
        ] {
            let args = Args::parse_from(["sweep", option, value]);
            let error = args.check().expect_err(option).to_string();
            assert!(error.contains(option), "{option}: {error}");
        }
        for (option, value) in [("--block-size", "48"), ("--cache-tokens", "1")] {
            let args = Args::parse_from(["sweep", option, value]);
            let trace = Source::Trace("t".to_owned(), vec![Entry::default()]);
            let error = args.cluster(&trace).expect_err(option).to_string();
            assert!(error.contains(option), "{option}: {error}");
        }
    }
}
