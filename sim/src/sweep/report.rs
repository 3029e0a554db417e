//! Prints and writes the results of a sweep: a table, kv's results, cases where kv does not win, all points.

use super::figures::{Estimate, Figures};
use super::plan::{Outcome, Point};
use super::way::{Policy, Way};
use anyhow::{Context, Result};
use bench_figures::{Axis, Plot, svg};
use comfy_table::{Table, presets};
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

/// Target: kv's mean time to the first token is lower than round-robin's by this factor.
const SPEEDUP: f64 = 2.0;
/// Alternative target: kv's gain over round-robin is this fraction of the oracle's gain.
const GAIN_SHARE: f64 = 0.9;
/// Load at which these targets apply, in percent.
const SPEEDUP_LOAD: f64 = 70.0;
/// Target: kv's hit tokens are this fraction of the oracle's.
const HIT_SHARE: f64 = 0.95;

/// One way of routing at one load, over all seeds.
#[derive(Debug)]
struct Cell {
    load: f64,
    way: Way,
    points: Vec<Point>,
}

/// The printed text.
#[must_use]
pub fn text(outcome: &Outcome) -> String {
    let cells = cells(outcome);
    let rate = Estimate::of(&outcome.capacities);
    let mut text = format!(
        "{}. 100 % of load: {} requests a second, over {} seeds.\n{}\n\n",
        outcome.workload,
        plus_minus(rate, 1.0, 2),
        outcome.capacities.len(),
        table(&cells)
    );
    for kv in cells.iter().filter(|cell| cell.way.is_kv()) {
        text += &verdict(kv, &cells);
    }
    text
}

/// Writes plots and all points into a folder.
///
/// # Errors
/// If a file cannot be written.
pub fn write(outcome: &Outcome, folder: &Path) -> Result<()> {
    fs::create_dir_all(folder).with_context(|| format!("failed to make {}", folder.display()))?;
    let cells = cells(outcome);
    let file = |name: &str, text: String| {
        let path = folder.join(format!("{}-{name}", outcome.workload));
        fs::write(&path, text).with_context(|| format!("failed to write {}", path.display()))
    };
    let plot = |name: &str, title: &str, unit: &str, of: fn(&Figures) -> f64| {
        file(&format!("{name}.svg"), svg(&plot(&cells, name, title, unit, of)))
    };
    plot("ttft", "Mean time to the first token", "s", |at| at.ttft_mean)?;
    plot("p99", "99th percentile of the time to the first token", "s", |at| at.ttft_p99)?;
    plot("hits", "Prompt tokens found in caches", "%", |at| at.hit_ratio * 100.0)?;
    file("points.csv", csv(outcome))
}

fn plot(cells: &[Cell], name: &str, title: &str, unit: &str, of: impl Fn(&Figures) -> f64) -> Plot {
    let mut ways = Vec::new();
    for cell in cells {
        if !ways.contains(&cell.way) {
            ways.push(cell.way);
        }
    }
    let points = |way: Way| {
        cells.iter().filter(move |cell| cell.way == way).map(|cell| {
            let Estimate { mean, half } = cell.estimate(&of);
            (cell.load, mean, half)
        })
    };
    let x = Axis::linear("Load (% of what round-robin keeps up with)");
    let plot = Plot::lines(name, title, x, Axis::linear(unit));
    ways.into_iter().fold(plot, |plot, way| plot.with_estimates(way.to_string(), points(way)))
}

fn csv(outcome: &Outcome) -> String {
    let mut text = "load_percent,way,seed,hit_ratio,predicted_ratio,misjudged_ratio,ttft_mean_s,\
                    ttft_p50_s,ttft_p99_s,wait_step_s,wait_queue_s,wait_prefill_s,itl_mean_s,\
                    imbalance\n"
        .to_owned();
    for Point { way, load, seed, figures: at } in &outcome.points {
        let values = [
            at.hit_ratio,
            at.predicted_ratio,
            at.misjudged_ratio,
            at.ttft_mean,
            at.ttft_p50,
            at.ttft_p99,
            at.wait_step,
            at.wait_queue,
            at.wait_prefill,
            at.itl_mean,
            at.imbalance,
        ];
        let values: Vec<_> = values.iter().map(|value| format!("{value:.6}")).collect();
        // Writing to a string does not fail.
        let _written = writeln!(text, "{load},\"{way}\",{seed},{}", values.join(","));
    }
    text
}

fn cells(outcome: &Outcome) -> Vec<Cell> {
    let same = |a: &Point, b: &Point| a.load == b.load && a.way == b.way;
    let cell = |points: &'_ [Point]| {
        let Point { load, way, .. } = *points.first()?;
        Some(Cell { load, way, points: points.to_vec() })
    };
    outcome.points.chunk_by(same).filter_map(cell).collect()
}

fn table(cells: &[Cell]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::ASCII_MARKDOWN);
    table.set_header([
        "load %",
        "way",
        "hits %",
        "predicted %",
        "TTFT mean s",
        "p50 s",
        "p99 s",
        "ITL ms",
        "imbalance",
        "regret s",
    ]);
    for cell in cells {
        let of = |figure: fn(&Figures) -> f64, factor, digits| {
            plus_minus(cell.estimate(figure), factor, digits)
        };
        table.add_row([
            cell.load.to_string(),
            cell.way.to_string(),
            of(|at| at.hit_ratio, 100.0, 1),
            if cell.way.is_kv() { of(|at| at.predicted_ratio, 100.0, 1) } else { String::new() },
            of(|at| at.ttft_mean, 1.0, 3),
            of(|at| at.ttft_p50, 1.0, 3),
            of(|at| at.ttft_p99, 1.0, 2),
            of(|at| at.itl_mean, 1e3, 1),
            of(|at| at.imbalance, 1.0, 2),
            plus_minus(cell.excess(oracle(cell, cells)), 1.0, 3),
        ]);
    }
    table
}

/// kv's result at one load.
fn verdict(kv: &Cell, cells: &[Cell]) -> String {
    let mut text = format!("{} % of load, {}:\n", kv.load, kv.way);
    let mut line = |is_true: bool, what: String| {
        text += &format!("  {} {what}\n", if is_true { "yes" } else { "NO " });
    };
    let mean = |cell: &Cell| cell.estimate(|at| at.ttft_mean).mean;
    // Engines with separate prefill are compared only with such engines.
    let is_alike =
        |at: &Cell| at.load == kv.load && at.way.prefill_engines == kv.way.prefill_engines;
    let at_load = |policy| cells.iter().find(|at| is_alike(at) && at.way.policy == policy);
    let in_turn = at_load(Policy::RoundRobin);
    let oracle = at_load(Policy::Oracle);
    if let (Some(in_turn), Some(oracle)) = (in_turn, oracle) {
        let factor = mean(in_turn) / mean(kv);
        let gain = (mean(in_turn) - mean(kv)) / (mean(in_turn) - mean(oracle));
        let asked = if kv.load == SPEEDUP_LOAD { "" } else { " (asked at 70 % only)" };
        line(
            factor >= SPEEDUP || gain >= GAIN_SHARE,
            format!(
                "mean TTFT {factor:.2} times lower than round-robin's, {:.0} % of the oracle's \
                 gain; wanted: {SPEEDUP} times or 90 %{asked}",
                gain * 100.0
            ),
        );
        let hits = |cell: &Cell| cell.estimate(|at| at.hit_ratio).mean;
        let share = hits(kv) / hits(oracle);
        let what = format!("hit tokens are {:.1} % of the oracle's; wanted: 95 %", share * 100.0);
        line(share >= HIT_SHARE, what);
    }
    // These policies have abilities or knowledge that kv lacks.
    let is_beyond = |at: &Cell| [Policy::KvFetch, Policy::Oracle].contains(&at.way.policy);
    let others = cells.iter().filter(|at| is_alike(at) && !at.way.is_kv() && !is_beyond(at));
    let better: Vec<_> = others.filter(|other| kv.is_worse_than(other)).collect();
    line(better.is_empty(), "no other policy has a lower mean TTFT beyond the interval".to_owned());
    for other in better {
        text += &format!(
            "      {} is lower by {} s: it has {}, kv has {}\n",
            other.way,
            plus_minus(kv.excess(Some(other)), 1.0, 3),
            causes(other),
            causes(kv)
        );
    }
    text
}

/// Explains a time to the first token.
fn causes(cell: &Cell) -> String {
    let mean = |of: fn(&Figures) -> f64| cell.estimate(of).mean;
    format!(
        "hits {:.1} %, imbalance {:.2}, and {:.3} s until a step ends, {:.3} s in the queue, {:.3} s of prefill",
        mean(|at| at.hit_ratio) * 100.0,
        mean(|at| at.imbalance),
        mean(|at| at.wait_step),
        mean(|at| at.wait_queue),
        mean(|at| at.wait_prefill)
    )
}

fn oracle<'a>(cell: &Cell, cells: &'a [Cell]) -> Option<&'a Cell> {
    cells.iter().find(|at| at.load == cell.load && at.way.policy == Policy::Oracle)
}

pub(super) fn plus_minus(at: Estimate, factor: f64, digits: usize) -> String {
    format!("{:.digits$} ± {:.digits$}", at.mean * factor, at.half * factor)
}

// === impl Cell ===

impl Cell {
    fn estimate(&self, of: impl Fn(&Figures) -> f64) -> Estimate {
        let values: Vec<_> = self.points.iter().map(|at| of(&at.figures)).collect();
        Estimate::of(&values)
    }

    /// Difference of its mean time to the first token from another cell's, seed by seed, in seconds. Both had the same
    /// arrivals, so the differences vary less than the values.
    fn excess(&self, other: Option<&Cell>) -> Estimate {
        let others = other.into_iter().flat_map(|other| &other.points);
        let pairs = self.points.iter().zip(others);
        let difference = |(a, b): (&Point, &Point)| a.figures.ttft_mean - b.figures.ttft_mean;
        Estimate::of(&pairs.map(difference).collect::<Vec<_>>())
    }

    /// Whether its mean time to the first token is higher, beyond the confidence interval.
    fn is_worse_than(&self, other: &Cell) -> bool {
        let excess = self.excess(Some(other));
        excess.mean > excess.half
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(kv: f64, in_turn: f64, oracle: f64) -> Outcome {
        let policies = [(Policy::Kv, kv), (Policy::RoundRobin, in_turn), (Policy::Oracle, oracle)];
        let point = |(policy, ttft_mean): (Policy, f64), seed: u64| {
            let ttft_mean = ttft_mean + seed as f64;
            let figures = Figures { ttft_mean, hit_ratio: 0.5, ..Figures::default() };
            Point { way: Way::of(policy), load: 70.0, seed, figures }
        };
        let points = policies.into_iter().flat_map(|at| [1, 2].map(|seed| point(at, seed)));
        let workload = "test".to_owned();
        Outcome { workload, points: points.collect(), capacities: vec![1.0, 2.0] }
    }

    #[test]
    fn verdicts_follow_from_the_figures() {
        let good = text(&outcome(1.0, 9.0, 0.9));
        assert_eq!((good.matches("  yes ").count(), good.matches("  NO  ").count()), (3, 0));
        let bad = text(&outcome(9.0, 8.0, 1.0));
        assert!(bad.contains("NO  mean TTFT") && bad.contains("yes hit tokens"), "{bad}");
        assert!(bad.contains("round-robin is lower by 1.000 ± 0.000 s"), "{bad}");
    }

    #[test]
    fn each_run_is_a_row_of_the_file() {
        assert_eq!(csv(&outcome(1.0, 2.0, 1.0)).lines().count(), 7);
        assert_eq!(cells(&outcome(1.0, 2.0, 1.0)).len(), 3);
    }
}
