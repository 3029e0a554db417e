//! What was seen, and what of it must not be.

use super::usage::Usage;
use anyhow::{Context, Result, ensure};
use bench_figures::{Axis, Plot, svg};
use router_client::ShardCounts;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// How long after a fault a query may still suffer from it.
const AFTERMATH: Duration = Duration::from_secs(3);
/// Failures that the report names.
const NAMED_MAX: usize = 20;
/// Part of the run, at its start, in which memory may grow: caches fill, allocators take their share.
const WARM_UP_SHARE: f64 = 1.0 / 3.0;
/// From this length on, the middle of a run says something about growth. Before, only much growth is one.
const LONG: Duration = Duration::from_secs(900);
/// Growth of memory from the second to the last third of a long run that is noise: this share, or so many bytes.
const GROWTH_MAX: f64 = 0.05;
const GROWTH_BYTES_MAX: f64 = 8.0 * 1_048_576.0;
/// The same for a short run, in which the parts are about one round of faults.
const SHORT_GROWTH_MAX: f64 = 0.5;
const SHORT_GROWTH_BYTES_MAX: f64 = 64.0 * 1_048_576.0;
/// Growth of the usual number of open files that is noise: connections that are just made anew.
const FILES_GROWTH_MAX: f64 = 16.0;

/// Everything that was seen.
#[derive(Debug)]
pub struct Report(Mutex<Seen>);

#[derive(Debug)]
struct Seen {
    began: Instant,
    /// Planned length of the run.
    length: Duration,
    prompts: u64,
    compared: u64,
    compared_longest: Duration,
    fresh: Vec<Duration>,
    /// Latencies by what went on: a fault, or nothing.
    queries: BTreeMap<String, Vec<Duration>>,
    /// How often a replica was in backoff, and requests to the other one because of a failure.
    second_replica: (u64, u64),
    failed: Vec<String>,
    failures: u64,
    /// The present or last fault, and its end.
    fault: Option<(String, Option<Instant>)>,
    /// By program and process, points of time in seconds.
    usage: BTreeMap<(String, u32), Vec<(f64, Usage)>>,
}

impl Report {
    /// An empty report of a run of this length.
    pub fn new(length: Duration) -> Self {
        Self(Mutex::new(Seen {
            began: Instant::now(),
            length,
            prompts: 0,
            compared: 0,
            compared_longest: Duration::ZERO,
            fresh: Vec::new(),
            queries: BTreeMap::new(),
            second_replica: (0, 0),
            failed: Vec::new(),
            failures: 0,
            fault: None,
            usage: BTreeMap::new(),
        }))
    }
}

/// What a process used in the second and in the last third of a run. Of memory, the least: what checkpoints and other work
/// take meanwhile comes and goes. Of files, the usual number: a cut closes connections for a while.
struct Growth<'a> {
    program: &'a str,
    memory_bytes: [f64; 2],
    files: [f64; 2],
}

impl Growth<'_> {
    fn of_memory(&self) -> f64 {
        self.memory_bytes[1] / self.memory_bytes[0] - 1.0
    }
}

/// The value that this share of the sorted values does not exceed, in milliseconds.
fn quantile(sorted: &[Duration], share: f64) -> f64 {
    let at = (sorted.len() as f64 * share) as usize;
    let value = sorted.get(at.min(sorted.len().saturating_sub(1)));
    value.map_or(f64::NAN, |at| at.as_secs_f64() * 1e3)
}

/// The value at this share of the values in order: 0 is the least, 0.5 the median.
fn ranked(mut values: Vec<f64>, share: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get((values.len() as f64 * share) as usize).copied().unwrap_or(f64::NAN)
}

fn latency_cells(latencies: &[Duration]) -> String {
    let mut sorted = latencies.to_vec();
    sorted.sort();
    let [half, most, all] = [0.5, 0.99, 1.0].map(|share| quantile(&sorted, share));
    format!("{} | {half:.1} | {most:.1} | {all:.1}", sorted.len())
}

impl Seen {
    fn phase(&self) -> &str {
        match &self.fault {
            Some((name, end)) if end.is_none_or(|end| end.elapsed() < AFTERMATH) => name,
            Some(_) | None => "none",
        }
    }

    /// Processes that ran from the warm-up to the end.
    fn growths(&self) -> Vec<Growth<'_>> {
        let end = self.usage.values().flatten().map(|at| at.0).fold(0.0, f64::max);
        let third = end * WARM_UP_SHARE;
        let lasting = self.usage.iter().filter(|(_, points)| {
            points[0].0 <= third && points.last().is_some_and(|last| last.0 >= end - third / 2.0)
        });
        lasting
            .map(|((program, _), points)| {
                let thirds = |value: fn(&Usage) -> f64, share: f64| {
                    [(third, 2.0 * third), (2.0 * third, end)].map(|(from, to)| {
                        let within = points.iter().filter(|(at, _)| (from..=to).contains(at));
                        ranked(within.map(|(_, usage)| value(usage)).collect(), share)
                    })
                };
                Growth {
                    program,
                    memory_bytes: thirds(|at| at.memory_bytes, 0.0),
                    files: thirds(|at| at.files, 0.5),
                }
            })
            .collect()
    }
}

impl Report {
    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An engine has answered a prompt.
    pub fn prompt(&self) {
        self.seen().prompts += 1;
    }

    /// A query has ended, with an error or without.
    pub fn query(&self, latency: Duration, error: Option<String>) {
        let mut seen = self.seen();
        let phase = seen.phase().to_owned();
        if let Some(error) = error {
            seen.failures += 1;
            if seen.failed.len() < NAMED_MAX {
                let at = seen.began.elapsed();
                seen.failed.push(format!("{at:.1?}, {phase}: {error} after {latency:.1?}"));
            }
        }
        seen.queries.entry(phase).or_default().push(latency);
    }

    /// What the client of both indexes has noticed.
    pub fn second_replica(&self, counts: Option<&ShardCounts>) {
        self.seen().second_replica = counts.map_or((0, 0), |at| (at.failures, at.failovers));
    }

    /// The answers of an index, and of those before it, were exact this long after the engine's last event.
    pub fn fresh(&self, after: Duration) {
        self.seen().fresh.push(after);
    }

    /// All indexes equalled all engines, as a comparison of this length has found.
    pub fn compared(&self, length: Duration) {
        let mut seen = self.seen();
        seen.compared += 1;
        seen.compared_longest = seen.compared_longest.max(length);
    }

    /// A fault begins.
    pub fn begin(&self, fault: &str) {
        self.seen().fault = Some((fault.to_owned(), None));
    }

    /// The fault is over.
    pub fn end(&self) {
        if let Some((_, end)) = &mut self.seen().fault {
            *end = Some(Instant::now());
        }
    }

    /// What a process uses now.
    pub fn usage(&self, program: &str, process: u32, usage: Usage) {
        let mut seen = self.seen();
        let at = seen.began.elapsed().as_secs_f64();
        seen.usage.entry((program.to_owned(), process)).or_default().push((at, usage));
    }

    /// One line of progress.
    pub fn line(&self, fault: &str) -> String {
        let seen = self.seen();
        let queries: usize = seen.queries.values().map(Vec::len).sum();
        format!(
            "{:>4.0} s: {fault}; {} prompts, {queries} queries, {} failed, {} checks",
            seen.began.elapsed().as_secs_f64(),
            seen.prompts,
            seen.failures,
            seen.fresh.len(),
        )
    }

    /// The whole report.
    pub fn text(&self) -> String {
        let seen = self.seen();
        let mut text = String::new();
        let _ = writeln!(
            text,
            "{:.0} s, {} prompts. {} times, all indexes equalled all engines while these rested; the \
             longest comparison took {:.1?}.\n",
            seen.began.elapsed().as_secs_f64(),
            seen.prompts,
            seen.compared,
            seen.compared_longest
        );
        let _ = writeln!(text, "| fault | queries | p50 ms | p99 ms | longest ms |");
        let _ = writeln!(text, "|---|---|---|---|---|");
        for (phase, latencies) in &seen.queries {
            let _ = writeln!(text, "| {phase} | {} |", latency_cells(latencies));
        }
        let _ = writeln!(text, "| *until exact* | {} |", latency_cells(&seen.fresh));
        let (failures, failovers) = seen.second_replica;
        let _ = writeln!(
            text,
            "\nA replica was in backoff {failures} times; {failovers} queries went to the other one, too."
        );
        let _ = writeln!(text, "Queries that failed: {}", seen.failures);
        for failed in &seen.failed {
            let _ = writeln!(text, "- {failed}");
        }
        let _ =
            writeln!(text, "\n| program | least MiB, second third | last third | growth | files |");
        let _ = writeln!(text, "|---|---|---|---|---|");
        for growth in seen.growths() {
            let [before, after] = growth.memory_bytes.map(|bytes| bytes / f64::from(1 << 20));
            let percent = growth.of_memory() * 100.0;
            let Growth { program, files: [_, files], .. } = growth;
            let _ = writeln!(
                text,
                "| {program} | {before:.1} | {after:.1} | {percent:+.1} % | {files} |"
            );
        }
        text
    }

    /// Writes the report and its plots.
    pub fn write(&self, folder: &Path) -> Result<()> {
        fs::create_dir_all(folder).context("create the report's folder")?;
        fs::write(folder.join("soak.md"), self.text())?;
        let seen = self.seen();
        let time = || Axis::linear("time, s");
        let mut memory = Plot::lines("memory", "Resident memory", time(), Axis::linear("MiB"));
        let mut files = Plot::lines("files", "Open files", time(), Axis::linear("files"));
        // One line for a program, through all its processes.
        let mut programs: BTreeMap<&str, Vec<&(f64, Usage)>> = BTreeMap::new();
        for ((program, _), points) in &seen.usage {
            programs.entry(program).or_default().extend(points);
        }
        for (program, mut points) in programs {
            points.sort_by(|one, other| one.0.total_cmp(&other.0));
            let mebibytes = |at: &&(f64, Usage)| (at.0, at.1.memory_bytes / f64::from(1 << 20));
            memory = memory.with_line(program, points.iter().map(mebibytes));
            files = files.with_line(program, points.iter().map(|at| (at.0, at.1.files)));
        }
        for plot in [memory, files] {
            fs::write(folder.join(format!("{}.svg", plot.name)), svg(&plot))?;
        }
        Ok(())
    }

    /// Fails if a query failed, or memory or the number of open files grew.
    pub fn check(&self) -> Result<()> {
        let seen = self.seen();
        ensure!(seen.failures == 0, "{} queries failed: {:#?}", seen.failures, seen.failed);
        ensure!(seen.second_replica.0 > 0, "the client has noticed no fault");
        ensure!(seen.compared > 0 && !seen.fresh.is_empty(), "nothing was compared");
        let growths = seen.growths();
        ensure!(growths.iter().any(|at| at.program.starts_with("index")), "no index lasted");
        let (share, noise) = if seen.length >= LONG {
            (GROWTH_MAX, GROWTH_BYTES_MAX)
        } else {
            (SHORT_GROWTH_MAX, SHORT_GROWTH_BYTES_MAX)
        };
        for growth in growths {
            let Growth { program, files: [before, after], .. } = growth;
            let more = growth.of_memory();
            let bytes = growth.memory_bytes[1] - growth.memory_bytes[0];
            ensure!(more < share || bytes < noise, "{program} grew by {:.1} %", more * 100.0);
            ensure!(after < before + FILES_GROWTH_MAX, "{program}: {before} files, then {after}");
        }
        Ok(())
    }
}
