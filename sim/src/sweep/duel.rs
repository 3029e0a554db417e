//! Compares kv and round-robin briefly, for the first screen of the demo.

use super::capacity;
use super::cluster;
use super::figures::Figures;
use super::job::{self, Source};
use super::options::{ClusterOptions, SYNC_NANOS};
use super::way::{Policy, Way};
use crate::engine::scheduler::{RUNNING_REQUESTS_MAX, STEP_TOKENS_MAX};
use crate::engine::timed::{EngineOptions, StepModel, TransferModel};
use anyhow::Result;
use router_client::route::CostConfig;
use std::fmt::Write as _;

/// Number of requests in each run.
const REQUESTS: usize = 800;
/// Load, in percent of the rate that round-robin sustains.
const LOAD: f64 = 70.0;
/// Default tokens per block; recorded traces may have others.
const BLOCK_TOKENS: usize = 64;
/// Width of the longest bar, in characters.
const BAR_WIDTH: f64 = 44.0;

/// Results of both runs.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Duel {
    engines: usize,
    requests: usize,
    kv: Figures,
    in_turn: Figures,
}

// === impl Duel ===

impl Duel {
    /// Runs the beginning of a workload under both policies in virtual time, with equal arrivals.
    ///
    /// # Errors
    /// If the workload does not suit the engines.
    pub fn run(source: &Source, seed: u64, engines: usize, cache_tokens: usize) -> Result<Self> {
        let ids = source.id_tokens().unwrap_or(BLOCK_TOKENS);
        let block_size = if ids.is_multiple_of(BLOCK_TOKENS) { BLOCK_TOKENS } else { ids };
        let engine = EngineOptions {
            model: StepModel::default(),
            block_size,
            capacity_blocks: cache_tokens / block_size,
            host_blocks: 0,
            disk_blocks: 0,
            state_slots: 0,
            step_tokens_max: STEP_TOKENS_MAX,
            running_max: RUNNING_REQUESTS_MAX,
        };
        let sync_delay = SYNC_NANOS;
        let transfer = TransferModel::default();
        let cost = CostConfig::default();
        let options =
            ClusterOptions { engines, engine, cost, sync_delay, transfer, states_capacity: true };
        let jobs = source.jobs(seed, REQUESTS, block_size);
        let factor = capacity::find(&options, &jobs)?;
        let arrivals = job::faster(&jobs, factor * LOAD / 100.0);
        let figures = |policy| {
            let run = cluster::run(&options, &jobs, &arrivals, Way::of(policy), seed)?;
            anyhow::Ok(Figures::of(&run))
        };
        let kv = figures(Policy::Kv)?;
        let in_turn = figures(Policy::RoundRobin)?;
        Ok(Self { engines, requests: jobs.len(), kv, in_turn })
    }

    /// A table and a plot, in at most 20 lines of at most 80 characters.
    #[must_use]
    pub fn text(&self) -> String {
        let Self { engines, requests, kv, in_turn } = self;
        let mut text = format!(
            "kv and round-robin in virtual time: {requests} requests to {engines} engines, at {LOAD} % of\n\
             the load that round-robin keeps up with. The engines' times are a stated\n\
             model (sim/src/engine/timed/model.rs), not those of this machine.\n\n"
        );
        text += "               cached tokens  first token: mean       p50       p99\n";
        for (name, at) in [("kv", kv), ("round-robin", in_turn)] {
            // Writing to a string does not fail, here and below.
            let _written = writeln!(
                text,
                "{name:>13} {:>13.1} % {:>17.3} s {:>7.3} s {:>7.3} s",
                at.hit_ratio * 100.0,
                at.ttft_mean,
                at.ttft_p50,
                at.ttft_p99
            );
        }
        text += "\nMean time to the first token (shorter is better)\n";
        let longest = kv.ttft_mean.max(in_turn.ttft_mean).max(f64::MIN_POSITIVE);
        for (name, at) in [("kv", kv), ("round-robin", in_turn)] {
            let bar = "█".repeat((BAR_WIDTH * at.ttft_mean / longest).round() as usize);
            let _written = writeln!(text, "{name:>13} {bar} {:.3} s", at.ttft_mean);
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_fits_a_screen_and_shows_what_was_measured() {
        let figures = |ttft_mean| Figures { ttft_mean, hit_ratio: 0.125, ..Figures::default() };
        let duel = Duel { engines: 8, requests: 800, kv: figures(0.25), in_turn: figures(0.5) };
        let text = duel.text();
        assert!(text.lines().count() <= 20, "{text}");
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
        let bars = |line: &str| line.chars().filter(|at| *at == '█').count();
        let bars: Vec<_> = text.lines().map(bars).filter(|count| *count > 0).collect();
        assert_eq!(bars, [22, 44], "{text}");
        assert!(text.contains("12.5 %") && text.contains("0.250 s"), "{text}");
    }
}
