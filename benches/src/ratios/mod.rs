//! Micro-benchmarks as ratios: the cost of an operation relative to a stable yardstick of the same size (copying the
//! same bytes, looking up as many keys), measured in the same run. Such ratios can be committed, because most
//! differences between machines and days cancel out.

mod cases;
mod fleet;
mod hybrid;

use anyhow::{Context, Result, ensure};
use bench_figures::number::median;
use bench_figures::{Part, Table};
use cases::Case;
use clap::Parser;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::time::Duration;
use tokio::time::Instant;

/// Number of paired measurements of each case; the median counts.
const ROUNDS: usize = 41;
/// Minimum duration of one measurement.
const MEASURED_MIN: Duration = Duration::from_millis(2);
/// Default factor by which a ratio may differ from its baseline in either direction.
const TOLERANCE: f64 = 1.35;

/// Measures hashing, decoding, apply, lookup and dump, each against a yardstick in the same run, and prints the ratios
/// with the committed ones.
#[derive(Debug, Clone, Parser)]
#[command(name = "ratios")]
pub struct Args {
    /// File with the committed ratios.
    #[arg(long, default_value = concat!(env!("CARGO_MANIFEST_DIR"), "/baseline.json"))]
    pub baseline: PathBuf,
    /// Fail if a ratio is worse than its baseline by more than its tolerance.
    #[arg(long)]
    pub check: bool,
    /// Write the measured ratios as the new baseline; tolerances are kept.
    #[arg(long)]
    pub update: bool,
    /// Only cases whose name contains this text.
    #[arg(long, default_value = "")]
    pub only: String,
    /// Print the part for the report of all benches, as a line of JSON.
    #[arg(long)]
    pub json: bool,
}

/// A committed ratio.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
struct Baseline {
    /// Cost of the operation divided by the cost of its yardstick.
    ratio: f64,
    /// Factor by which the ratio may be worse.
    tolerance: f64,
}

/// Results of one case: medians in nanoseconds, and the median of the rounds' ratios.
struct Measured {
    operation: f64,
    yardstick: f64,
    ratio: f64,
}

/// Measures and reports. Returns false if `check` is set and a ratio is beyond its tolerance.
pub fn run(args: &Args) -> Result<bool> {
    let mut baselines: BTreeMap<String, Baseline> = match fs::read_to_string(&args.baseline) {
        Ok(text) => serde_json::from_str(&text).context("the baselines")?,
        Err(error) if args.update => {
            println!("no baselines yet: {error}");
            BTreeMap::new()
        }
        Err(error) => return Err(error).context(format!("read {}", args.baseline.display())),
    };
    let mut within = true;
    let mut measured = 0;
    let mut table = Table::new(["case", "operation", "yardstick", "ratio", "baseline", ""]);
    let cases = cases::all().into_iter().chain(hybrid::cases());
    for case in cases.filter(|case| case.name.contains(&args.only)) {
        let name = case.name;
        let yardstick = case.against;
        let result = measure(case);
        measured += 1;
        let baseline = baselines.get(name).copied();
        let verdict = verdict(result.ratio, baseline);
        within &= verdict != WORSE;
        let Measured { operation, yardstick: reference, ratio } = result;
        let committed = baseline.map_or(f64::NAN, |at| at.ratio);
        table.row([
            name.to_owned(),
            format!("{operation:.0} ns"),
            format!("{yardstick}: {reference:.0} ns"),
            format!("{ratio:.3}"),
            format!("{committed:.3}"),
            verdict.to_owned(),
        ]);
        if args.update {
            let tolerance = baseline.map_or(TOLERANCE, |at| at.tolerance);
            // Three digits; further digits are noise.
            let ratio = (ratio * 1e3).round() / 1e3;
            baselines.insert(name.to_owned(), Baseline { ratio, tolerance });
        }
    }
    ensure!(measured > 0, "--only: no case is named so");
    if args.update {
        fs::write(&args.baseline, serde_json::to_string_pretty(&baselines)? + "\n")?;
    }
    match args.json {
        true => println!("{}", serde_json::to_string(&part(table))?),
        false => print!("{table}"),
    }
    Ok(within || !args.check)
}

/// The part for the report of all benches.
fn part(table: Table) -> Part {
    const NOTE: &str = "What an operation costs beside a yardstick of the same run: medians of 41 \
        rounds in one process, beside the committed ratios of benches/baseline.json.";
    let mut part = Part { title: "Micro-benches as ratios".to_owned(), ..Part::default() };
    part.add("Ratios", NOTE, table);
    part
}

const WORSE: &str = "**worse**";

fn verdict(ratio: f64, baseline: Option<Baseline>) -> &'static str {
    match baseline {
        None => "new",
        Some(at) if ratio > at.ratio * at.tolerance => WORSE,
        Some(at) if ratio * at.tolerance < at.ratio => "better",
        Some(_) => "as before",
    }
}

/// Measures both sides in turn.
fn measure(mut case: Case) -> Measured {
    let runs = enough(&mut *case.operation);
    let reference_runs = enough(&mut *case.yardstick);
    let rounds: Vec<(f64, f64)> = (0..ROUNDS)
        .map(|_| (time(&mut *case.operation, runs), time(&mut *case.yardstick, reference_runs)))
        .collect();
    let median =
        |value: fn(&(f64, f64)) -> f64| median(&rounds.iter().map(value).collect::<Vec<f64>>());
    Measured {
        operation: median(|(operation, _)| *operation),
        yardstick: median(|(_, yardstick)| *yardstick),
        ratio: median(|(operation, yardstick)| operation / yardstick),
    }
}

/// Number of repetitions that take long enough to measure.
fn enough(run: &mut dyn FnMut()) -> u32 {
    let mut runs = 1;
    while time(run, runs) * f64::from(runs) < MEASURED_MIN.as_secs_f64() * 1e9 {
        runs *= 2;
    }
    runs
}

/// Mean duration of one repetition, in nanoseconds.
fn time(run: &mut dyn FnMut(), runs: u32) -> f64 {
    let begin = Instant::now();
    (0..runs).for_each(|_| run());
    begin.elapsed().as_secs_f64() * 1e9 / f64::from(runs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ratio_is_worse_only_beyond_its_tolerance() {
        let baseline = Some(Baseline { ratio: 2.0, tolerance: 1.5 });
        assert_eq!(verdict(3.1, baseline), WORSE);
        assert_eq!(verdict(2.9, baseline), "as before");
        assert_eq!(verdict(1.4, baseline), "as before");
        assert_eq!(verdict(1.3, baseline), "better");
        assert_eq!(verdict(1.0, None), "new");
    }
}
