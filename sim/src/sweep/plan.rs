//! Executes all runs of a sweep on several threads. Runs share no state, so the order in which they end does not
//! matter.

use super::args::Args;
use super::capacity;
use super::cluster;
use super::figures::Figures;
use super::job::{self, Source};
use super::options::ClusterOptions;
use super::way::{MILLISECOND, Policy, STALENESS, Way};
use crate::engine::timed::Job;
use anyhow::{Context, Result, anyhow};
use indicatif::{ProgressBar, ProgressStyle};
use std::sync::{Mutex, PoisonError};
use std::thread::{self, ScopedJoinHandle};

/// One run: its parameters and results.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Point {
    /// Routing of the run.
    pub way: Way,
    /// Load, in percent of the rate that round-robin sustains.
    pub load: f64,
    /// Seed of the workload.
    pub seed: u64,
    /// Results of the run.
    pub figures: Figures,
}

/// The workload of one seed.
#[derive(Debug)]
pub(super) struct Workload {
    seed: u64,
    pub(super) jobs: Vec<Job>,
    /// Speed-up of the arrivals at 100 % load.
    pub(super) factor: f64,
}

/// Results of a sweep on one workload.
#[derive(Debug, Clone, PartialEq)]
pub struct Outcome {
    /// Name of the workload.
    pub workload: String,
    /// All runs, by load, way and seed, in the requested order.
    pub points: Vec<Point>,
    /// Requests per second at 100 % load, by seed.
    pub capacities: Vec<f64>,
}

/// Executes all runs of one workload.
///
/// # Errors
/// If the workload does not suit the engines, or a run fails.
pub fn run(args: &Args, source: &Source) -> Result<Outcome> {
    let options = args.cluster(source)?;
    let bar = bar("rates of arrival", args.seeds);
    let seeds: Vec<_> = (1..=args.seeds).collect();
    let workloads = in_parallel(args.threads, &seeds, &bar, |&seed| {
        workload(&options, source, seed, args.requests)
    })?;
    let asked: Vec<_> = asked(args, &workloads);
    let bar = self::bar("runs", asked.len() as u64);
    let points = in_parallel(args.threads, &asked, &bar, |(load, way, workload)| {
        point(&options, *load, *way, workload)
    })?;
    let capacities = workloads.iter().map(Workload::rate).collect();
    Ok(Outcome { workload: source.to_string(), points, capacities })
}

/// The ways of a sweep, in the order of the table.
#[must_use]
pub fn ways(args: &Args) -> Vec<Way> {
    let kv = Way::of(Policy::Kv);
    let late = args.staleness_ms.iter().map(|ms| Way { staleness: ms * MILLISECOND, ..kv });
    let mut ways: Vec<_> = late.collect();
    // The default staleness comes first.
    ways.sort_by_key(|way| (way.staleness != STALENESS, way.staleness));
    ways.push(Way { is_unstated: true, ..kv });
    if args.state_slots > 0 {
        ways.push(Way::of(Policy::KvMainGroup));
    }
    if args.routers > 1 {
        let replicas = Way { routers: args.routers, ..kv };
        ways.extend([replicas, Way { has_kill: true, ..replicas }]);
    }
    let others = [
        Policy::KvFetch,
        Policy::RoundRobin,
        Policy::Random,
        Policy::LeastLoaded,
        Policy::PowerOfTwo,
        Policy::Oracle,
    ];
    ways.extend(others.map(Way::of));
    let prefill_engines = args.prefill_engines();
    if prefill_engines > 0 {
        let split = [Policy::Kv, Policy::RoundRobin];
        ways.extend(split.map(|policy| Way { prefill_engines, ..Way::of(policy) }));
    }
    ways
}

fn asked<'a>(args: &Args, workloads: &'a [Workload]) -> Vec<(f64, Way, &'a Workload)> {
    let mut asked = Vec::new();
    for &load in &args.loads {
        for way in ways(args) {
            asked.extend(workloads.iter().map(|workload| (load, way, workload)));
        }
    }
    asked
}

pub(super) fn workload(
    options: &ClusterOptions,
    source: &Source,
    seed: u64,
    requests: usize,
) -> Result<Workload> {
    let jobs = source.jobs(seed, requests, options.engine.block_size);
    let factor = capacity::find(options, &jobs)
        .with_context(|| format!("the rate of arrivals of seed {seed}"))?;
    Ok(Workload { seed, jobs, factor })
}

fn point(options: &ClusterOptions, load: f64, way: Way, workload: &Workload) -> Result<Point> {
    let Workload { seed, jobs, factor } = workload;
    let arrivals = job::faster(jobs, factor * load / 100.0);
    let run = cluster::run(options, jobs, &arrivals, way, *seed)
        .with_context(|| format!("{way} at {load} %, seed {seed}"))?;
    Ok(Point { way, load, seed: *seed, figures: Figures::of(&run) })
}

/// Executes all tasks. Returns their results in the order of the tasks, or the first error.
pub(super) fn in_parallel<T: Sync, R: Send>(
    threads: usize,
    tasks: &[T],
    bar: &ProgressBar,
    work: impl Fn(&T) -> Result<R> + Sync,
) -> Result<Vec<R>> {
    let queue = Mutex::new(tasks.iter().enumerate());
    let next = || queue.lock().unwrap_or_else(PoisonError::into_inner).next();
    let worker = || {
        let mut done = Vec::new();
        while let Some((number, task)) = next() {
            done.push((number, work(task)));
            bar.inc(1);
        }
        done
    };
    let joined = thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(worker)).collect();
        workers.into_iter().map(ScopedJoinHandle::join).collect::<Result<Vec<_>, _>>()
    });
    let mut done: Vec<_> =
        joined.map_err(|_panic| anyhow!("a run panicked"))?.into_iter().flatten().collect();
    bar.finish_and_clear();
    done.sort_unstable_by_key(|(number, _)| *number);
    done.into_iter().map(|(_, result)| result).collect()
}

pub(super) fn bar(what: &'static str, length: u64) -> ProgressBar {
    let style = ProgressStyle::with_template("{msg} {wide_bar} {pos}/{len}, {eta} left");
    let bar = ProgressBar::new(length).with_message(what);
    match style {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}

// === impl Workload ===

impl Workload {
    /// Requests per second at 100 % load.
    fn rate(&self) -> f64 {
        let last = self.jobs.last().map_or(0, |job| job.arrival);
        self.jobs.len() as f64 / (last as f64 / 1e9) * self.factor
    }
}

#[cfg(test)]
#[path = "plan_test.rs"]
mod plan_test;
