//! All runs of a sweep, on several threads. Runs share nothing, so the order in which they end does not matter.

use super::args::Args;
use super::capacity;
use super::cluster;
use super::figures::Figures;
use super::job::{self, Job};
use super::router::Policy;
use crate::workload::trace::Entry;
use anyhow::{Context, Result, anyhow};
use indicatif::{ProgressBar, ProgressStyle};
use std::sync::{Mutex, PoisonError};
use std::thread::{self, ScopedJoinHandle};

/// Nanoseconds of a millisecond.
const MILLISECOND: u64 = 1_000_000;

/// One run, by what was asked.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Point {
    /// How requests were placed.
    pub policy: Policy,
    /// Percent of the rate with which round-robin keeps up.
    pub load: f64,
    /// The workload's seed.
    pub seed: u64,
    /// What came out.
    pub figures: Figures,
}

/// The workload of one seed.
#[derive(Debug)]
struct Workload {
    seed: u64,
    jobs: Vec<Job>,
    /// How much faster it arrives at 100 % of load.
    factor: f64,
}

/// What came out of a sweep.
#[derive(Debug, Clone, PartialEq)]
pub struct Outcome {
    /// All runs, by load, policy and seed in the order in which they were asked for.
    pub points: Vec<Point>,
    /// Requests a second at 100 % of load, by seed.
    pub capacities: Vec<f64>,
}

/// Runs all.
///
/// # Errors
/// If the trace cannot be read, or a run fails.
pub fn run(args: &Args) -> Result<Outcome> {
    let lines = args.trace.as_deref().map(job::read_trace).transpose()?;
    let bar = bar("rates of arrival", args.seeds);
    let seeds: Vec<_> = (1..=args.seeds).collect();
    let workloads =
        in_parallel(args.threads, &seeds, &bar, |&seed| workload(args, lines.as_deref(), seed))?;
    let asked: Vec<_> = asked(args, &workloads);
    let bar = self::bar("runs", asked.len() as u64);
    let points = in_parallel(args.threads, &asked, &bar, |(load, policy, workload)| {
        point(args, *load, *policy, workload)
    })?;
    Ok(Outcome { points, capacities: workloads.iter().map(Workload::rate).collect() })
}

/// The policies of a sweep, in the order of the table.
#[must_use]
pub fn policies(args: &Args) -> Vec<Policy> {
    let kv = args.staleness_ms.iter().map(|ms| Policy::Kv(ms * MILLISECOND));
    let others = [
        Policy::RoundRobin,
        Policy::Random,
        Policy::LeastLoaded,
        Policy::PowerOfTwo,
        Policy::Oracle,
    ];
    kv.chain(others).collect()
}

fn asked<'a>(args: &Args, workloads: &'a [Workload]) -> Vec<(f64, Policy, &'a Workload)> {
    let mut asked = Vec::new();
    for &load in &args.loads {
        for policy in policies(args) {
            asked.extend(workloads.iter().map(|workload| (load, policy, workload)));
        }
    }
    asked
}

fn workload(args: &Args, lines: Option<&[Entry]>, seed: u64) -> Result<Workload> {
    let jobs = match lines {
        Some(lines) => job::window(lines, seed, args.requests, args.block_size),
        None => job::generated(seed, args.requests, args.block_size),
    };
    let factor = capacity::find(&args.cluster(), &jobs)
        .with_context(|| format!("the rate of arrivals of seed {seed}"))?;
    Ok(Workload { seed, jobs, factor })
}

fn point(args: &Args, load: f64, policy: Policy, workload: &Workload) -> Result<Point> {
    let Workload { seed, jobs, factor } = workload;
    let arrivals = job::faster(jobs, factor * load / 100.0);
    let run = cluster::run(&args.cluster(), jobs, &arrivals, policy, *seed)
        .with_context(|| format!("{policy} at {load} %, seed {seed}"))?;
    Ok(Point { policy, load, seed: *seed, figures: Figures::of(&run) })
}

/// Runs all tasks. Returns their results in the order of the tasks, or the first error.
fn in_parallel<T: Sync, R: Send>(
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

fn bar(what: &'static str, length: u64) -> ProgressBar {
    let style = ProgressStyle::with_template("{msg} {wide_bar} {pos}/{len}, {eta} left");
    let bar = ProgressBar::new(length).with_message(what);
    match style {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}

// === impl Workload ===

impl Workload {
    /// Requests a second at 100 % of load.
    fn rate(&self) -> f64 {
        let last = self.jobs.last().map_or(0, |job| job.arrival);
        self.jobs.len() as f64 / (last as f64 / 1e9) * self.factor
    }
}

#[cfg(test)]
#[path = "plan_test.rs"]
mod plan_test;
