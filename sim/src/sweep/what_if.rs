//! Estimates the effect of changes to engines or routing, at the workload's own arrival rate.

use super::args::Args;
use super::change::Setup;
use super::cluster;
use super::figures::{Estimate, Figures};
use super::job::{self, Source};
use super::plan::{bar, in_parallel};
use super::report::plus_minus;
use super::way::{Policy, Way};
use crate::engine::timed::Job;
use anyhow::{Context, Result};
use bench_figures::{Axis, Plot, svg};
use comfy_table::{Table, presets};
use std::fmt;
use std::fs;
use std::path::Path;

/// The estimates; the first is the unchanged setup.
#[derive(Debug, Clone, PartialEq)]
pub struct Answers {
    /// Name of the workload.
    pub workload: String,
    /// Requests per second.
    pub rate: f64,
    /// Recorded results of the workload; none without a recording.
    pub recorded: Option<Recorded>,
    /// Results per row, by its changes.
    pub rows: Vec<(String, Vec<Figures>)>,
}

/// Data in a trace about the fleet where it was recorded.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Recorded {
    /// Number of workers in the trace.
    pub workers: usize,
    /// Prompt tokens found in caches, as a fraction of all prompt tokens.
    pub hit_ratio: Option<f64>,
    /// Mean time to the first token, in seconds.
    pub ttft_mean: Option<f64>,
}

/// Runs the workload unchanged, and with each change.
///
/// # Errors
/// If a change is invalid, the workload does not suit the engines, or a run fails.
pub fn run(args: &Args, source: &Source) -> Result<Answers> {
    let options = args.cluster(source)?;
    let base = Setup { options, way: Way::of(Policy::Kv), traffic: 1.0 };
    let mut setups = vec![("as it is".to_owned(), base)];
    for what_if in &args.what_if {
        setups.push((what_if.to_string(), what_if.apply(base)?));
    }
    let block_size = options.engine.block_size;
    let seeds: Vec<_> = (1..=args.seeds).collect();
    let workloads: Vec<(u64, Vec<Job>)> =
        seeds.iter().map(|&seed| (seed, source.jobs(seed, args.requests, block_size))).collect();
    let tasks: Vec<_> =
        setups.iter().flat_map(|setup| workloads.iter().map(move |at| (setup, at))).collect();
    let figures = in_parallel(args.threads, &tasks, &bar("runs", tasks.len() as u64), |task| {
        let ((name, setup), (seed, jobs)) = task;
        let arrivals = job::faster(jobs, setup.traffic);
        let run = cluster::run(&setup.options, jobs, &arrivals, setup.way, *seed);
        Ok(Figures::of(&run.with_context(|| format!("what if {name}, seed {seed}"))?))
    })?;
    let rows = setups.iter().zip(figures.chunks(workloads.len()));
    let rows = rows.map(|((name, _), figures)| (name.clone(), figures.to_vec())).collect();
    let rates: Vec<_> = workloads.iter().map(|(_, jobs)| rate(jobs)).collect();
    let rate = Estimate::of(&rates).mean;
    Ok(Answers { workload: source.to_string(), rate, recorded: Recorded::of(source), rows })
}

/// The printed text.
#[must_use]
pub fn text(answers: &Answers) -> String {
    let seeds = answers.rows.first().map_or(0, |(_, figures)| figures.len());
    let workload = &answers.workload;
    let rate = answers.rate;
    let mut text = format!("{workload}: {rate:.2} requests a second, over {seeds} seeds.\n");
    if let Some(recorded) = &answers.recorded {
        text += &format!("{recorded}\n");
    }
    text + &format!("{}\n", table(answers))
}

/// Writes the table and a plot into a folder.
///
/// # Errors
/// If a file cannot be written.
pub fn write(answers: &Answers, folder: &Path) -> Result<()> {
    fs::create_dir_all(folder).with_context(|| format!("failed to make {}", folder.display()))?;
    let file = |name: &str, text: String| {
        let path = folder.join(format!("{}-{name}", answers.workload));
        fs::write(&path, text).with_context(|| format!("failed to write {}", path.display()))
    };
    let plot =
        |title: &str, unit: &str, of: fn(&Figures) -> f64| svg(&plot(answers, title, unit, of));
    file("what-if.md", text(answers))?;
    let ttft = plot("Mean time to the first token", "s", |at| at.ttft_mean);
    file("what-if-ttft.svg", ttft)?;
    let hits = plot("Prompt tokens found in caches", "%", |at| at.hit_ratio * 100.0);
    file("what-if-hits.svg", hits)
}

/// Bars of all rows. The first row, the baseline, has its own colour.
fn plot(answers: &Answers, title: &str, unit: &str, of: fn(&Figures) -> f64) -> Plot {
    let names = answers.rows.iter().map(|(name, _)| name.clone());
    let bars = |is_baseline: bool| {
        answers.rows.iter().enumerate().map(move |(row, (_, figures))| {
            let Estimate { mean, half } = estimate(figures, of);
            ((row == 0) == is_baseline).then_some((mean, half))
        })
    };
    Plot::bars("what-if", title, names, Axis::linear(unit))
        .with_bar_estimates("baseline", bars(true))
        .with_bar_estimates("what if", bars(false))
}

fn table(answers: &Answers) -> Table {
    let mut table = Table::new();
    table.load_style(presets::ASCII_MARKDOWN);
    table.set_header([
        "what if",
        "hits %",
        "TTFT mean s",
        "change %",
        "p50 s",
        "p99 s",
        "ITL ms",
        "imbalance",
    ]);
    let base = answers.rows.first().map_or(&[][..], |(_, figures)| figures);
    for (name, figures) in &answers.rows {
        let of = |of: fn(&Figures) -> f64, factor, digits| {
            plus_minus(estimate(figures, of), factor, digits)
        };
        let changes: Vec<_> = figures
            .iter()
            .zip(base)
            .map(|(at, base)| at.ttft_mean / base.ttft_mean - 1.0)
            .collect();
        table.add_row([
            name.clone(),
            of(|at| at.hit_ratio, 100.0, 1),
            of(|at| at.ttft_mean, 1.0, 3),
            plus_minus(Estimate::of(&changes), 100.0, 1),
            of(|at| at.ttft_p50, 1.0, 3),
            of(|at| at.ttft_p99, 1.0, 2),
            of(|at| at.itl_mean, 1e3, 1),
            of(|at| at.imbalance, 1.0, 2),
        ]);
    }
    table
}

fn estimate(figures: &[Figures], of: impl Fn(&Figures) -> f64) -> Estimate {
    Estimate::of(&figures.iter().map(of).collect::<Vec<_>>())
}

/// Requests per second.
fn rate(jobs: &[Job]) -> f64 {
    let last = jobs.last().map_or(1, |job| job.arrival.max(1));
    jobs.len() as f64 / (last as f64 / 1e9)
}

// === impl Recorded ===

impl Recorded {
    /// The recorded data over all requests of a trace.
    fn of(source: &Source) -> Option<Self> {
        let Source::Trace(_, lines) = source else { return None };
        let workers: std::collections::BTreeSet<_> =
            lines.iter().filter_map(|line| line.worker.as_deref()).collect();
        let cached = lines.iter().filter_map(|line| {
            line.cached_tokens.map(|cached| (cached as f64, line.input_length as f64))
        });
        let (cached, tokens) = cached.fold((0.0, 0.0), |(a, b), (c, d)| (a + c, b + d));
        let times: Vec<_> = lines.iter().filter_map(|line| line.ttft_ms).collect();
        let ttft_mean = (!times.is_empty()).then(|| Estimate::of(&times).mean / 1e3);
        let hit_ratio = (tokens > 0.0).then(|| cached / tokens);
        let recorded = Self { workers: workers.len(), hit_ratio, ttft_mean };
        (recorded != Self { workers: 0, hit_ratio: None, ttft_mean: None }).then_some(recorded)
    }
}

impl fmt::Display for Recorded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "As recorded:")?;
        let mut parts = Vec::new();
        if self.workers > 0 {
            parts.push(format!("{} workers", self.workers));
        }
        parts.extend(self.hit_ratio.map(|ratio| format!("hits {:.1} %", ratio * 100.0)));
        parts.extend(self.ttft_mean.map(|mean| format!("mean TTFT {mean:.3} s")));
        write!(f, " {}.", parts.join(", "))
    }
}

#[cfg(test)]
#[path = "what_if_test.rs"]
mod what_if_test;
