//! What a sweep prints and writes: a table, what is true of kv, where it does not win, all points.

use super::chart::{self, Chart, Line};
use super::figures::{Estimate, Figures};
use super::plan::{Outcome, Point};
use super::router::Policy;
use anyhow::{Context, Result};
use comfy_table::{Table, presets};
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

/// kv's mean time to the first token is to be lower than round-robin's by this factor,
const SPEEDUP: f64 = 2.0;
/// or its gain over round-robin this share of the oracle's gain.
const GAIN_SHARE: f64 = 0.9;
/// The load at which that is asked, in percent.
const SPEEDUP_LOAD: f64 = 70.0;
/// kv's hit tokens are to be this share of the oracle's.
const HIT_SHARE: f64 = 0.95;

/// One way of routing at one load, over all seeds.
#[derive(Debug)]
struct Cell {
    load: f64,
    policy: Policy,
    points: Vec<Point>,
}

/// All that was printed.
#[must_use]
pub fn text(outcome: &Outcome) -> String {
    let cells = cells(outcome);
    let rate = Estimate::of(&outcome.capacities);
    let mut text = format!(
        "100 % of load: {} requests a second, over {} seeds.\n{}\n\n",
        plus_minus(rate, 1.0, 2),
        outcome.capacities.len(),
        table(&cells)
    );
    for kv in cells.iter().filter(|cell| cell.policy.is_kv()) {
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
        let path = folder.join(name);
        fs::write(&path, text).with_context(|| format!("failed to write {}", path.display()))
    };
    let ttft = |figures: &Figures| figures.ttft_mean;
    file("ttft.svg", chart(&cells, "Mean time to the first token (s)", ttft))?;
    let hits = |figures: &Figures| figures.hit_ratio * 100.0;
    file("hits.svg", chart(&cells, "Prompt tokens found in caches (%)", hits))?;
    file("points.csv", csv(outcome))
}

fn chart(cells: &[Cell], label: &'static str, of: impl Fn(&Figures) -> f64) -> String {
    let mut lines: Vec<Line> = Vec::new();
    for cell in cells {
        let (name, Estimate { mean, half }) = (cell.policy.to_string(), cell.estimate(&of));
        let point = (cell.load, mean, half);
        match lines.iter_mut().find(|line| line.name == name) {
            Some(line) => line.points.push(point),
            None => lines.push(Line { name, points: vec![point] }),
        }
    }
    chart::svg(&Chart { x: "Load (% of what round-robin keeps up with)", y: label, lines })
}

fn csv(outcome: &Outcome) -> String {
    let mut text = "load_percent,policy,seed,hit_ratio,ttft_mean_s,ttft_p50_s,ttft_p99_s,\
                    itl_mean_s,imbalance\n"
        .to_owned();
    for Point { policy, load, seed, figures } in &outcome.points {
        let Figures { hit_ratio, ttft_mean, ttft_p50, ttft_p99, itl_mean, imbalance } = figures;
        // Writing to a string does not fail.
        let _written = writeln!(
            text,
            "{load},\"{policy}\",{seed},{hit_ratio:.5},{ttft_mean:.5},{ttft_p50:.5},{ttft_p99:.5},\
             {itl_mean:.6},{imbalance:.4}"
        );
    }
    text
}

fn cells(outcome: &Outcome) -> Vec<Cell> {
    let same = |a: &Point, b: &Point| a.load == b.load && a.policy == b.policy;
    let cell = |points: &'_ [Point]| {
        let Point { load, policy, .. } = *points.first()?;
        Some(Cell { load, policy, points: points.to_vec() })
    };
    outcome.points.chunk_by(same).filter_map(cell).collect()
}

fn table(cells: &[Cell]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::ASCII_MARKDOWN);
    table.set_header([
        "load %",
        "policy",
        "hits %",
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
            cell.policy.to_string(),
            of(|at| at.hit_ratio, 100.0, 1),
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

/// What is true of kv at one load.
fn verdict(kv: &Cell, cells: &[Cell]) -> String {
    let mut text = format!("{} % of load, {}:\n", kv.load, kv.policy);
    let mut line = |is_true: bool, what: String| {
        text += &format!("  {} {what}\n", if is_true { "yes" } else { "NO " });
    };
    let mean = |cell: &Cell| cell.estimate(|at| at.ttft_mean).mean;
    let at_load = |policy| cells.iter().find(|at| at.load == kv.load && at.policy == policy);
    let (in_turn, oracle) = (at_load(Policy::RoundRobin), at_load(Policy::Oracle));
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
    let others = cells
        .iter()
        .filter(|at| at.load == kv.load && !at.policy.is_kv() && at.policy != Policy::Oracle);
    let better: Vec<_> = others.filter(|other| kv.is_worse_than(other)).collect();
    line(better.is_empty(), "no other policy has a lower mean TTFT beyond the interval".to_owned());
    for other in better {
        text += &format!(
            "      {} is lower by {} s: it has {}, kv has {}\n",
            other.policy,
            plus_minus(kv.excess(Some(other)), 1.0, 3),
            causes(other),
            causes(kv)
        );
    }
    text
}

/// What explains a time to the first token.
fn causes(cell: &Cell) -> String {
    let hits = cell.estimate(|at| at.hit_ratio).mean * 100.0;
    let imbalance = cell.estimate(|at| at.imbalance).mean;
    format!("hits {hits:.1} % and imbalance {imbalance:.2}")
}

fn oracle<'a>(cell: &Cell, cells: &'a [Cell]) -> Option<&'a Cell> {
    cells.iter().find(|at| at.load == cell.load && at.policy == Policy::Oracle)
}

fn plus_minus(at: Estimate, factor: f64, digits: usize) -> String {
    format!("{:.digits$} ± {:.digits$}", at.mean * factor, at.half * factor)
}

// === impl Cell ===

impl Cell {
    fn estimate(&self, of: impl Fn(&Figures) -> f64) -> Estimate {
        let values: Vec<_> = self.points.iter().map(|at| of(&at.figures)).collect();
        Estimate::of(&values)
    }

    /// By how much its mean time to the first token is above another one's, seed by seed, in seconds: both saw the same
    /// arrivals, so their differences vary less than they do.
    fn excess(&self, other: Option<&Cell>) -> Estimate {
        let others = other.into_iter().flat_map(|other| &other.points);
        let pairs = self.points.iter().zip(others);
        let difference = |(a, b): (&Point, &Point)| a.figures.ttft_mean - b.figures.ttft_mean;
        Estimate::of(&pairs.map(difference).collect::<Vec<_>>())
    }

    /// Whether its mean time to the first token is higher beyond the interval.
    fn is_worse_than(&self, other: &Cell) -> bool {
        let excess = self.excess(Some(other));
        excess.mean > excess.half
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(kv: f64, in_turn: f64, oracle: f64) -> Outcome {
        let policies =
            [(Policy::Kv(0), kv), (Policy::RoundRobin, in_turn), (Policy::Oracle, oracle)];
        let point = |(policy, ttft_mean): (Policy, f64), seed: u64| {
            let ttft_mean = ttft_mean + seed as f64;
            let figures = Figures { ttft_mean, hit_ratio: 0.5, ..Figures::default() };
            Point { policy, load: 70.0, seed, figures }
        };
        let points = policies.into_iter().flat_map(|at| [1, 2].map(|seed| point(at, seed)));
        Outcome { points: points.collect(), capacities: vec![1.0, 2.0] }
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
