//! The plots of a report.

use super::figures::{At, CHAIN, Figures, INDEXES, OURS, calls};
use crate::record::Head;
use crate::workload::Kind;
use anyhow::Result;
use peers_report::plot::{bars, lines};
use peers_report::{Axes, Scale, Series};
use std::path::Path;

const KINDS: [Kind; 3] = [Kind::Distinct, Kind::Shared8, Kind::Prefix64];
/// The work of the throughput plots.
const RATES: [(&str, &str); 5] = [
    ("store", "store"),
    ("remove.tail", "remove: tail"),
    ("remove.scattered", "scattered"),
    ("remove.events", "events"),
    ("remove.random", "random"),
];

struct Plots<'a> {
    figures: &'a Figures,
    folder: &'a Path,
    /// File and title of what was drawn.
    drawn: Vec<(String, String)>,
}

/// Draws what was measured; file and title of each.
pub(crate) fn draw(figures: &Figures, head: &Head, folder: &Path) -> Result<Vec<(String, String)>> {
    let mut plots = Plots { figures, folder, drawn: Vec::new() };
    for kind in KINDS {
        let at = At::new(kind, head.pairs);
        let cases: &[&str] = match kind {
            Kind::Prefix64 => &["prompt", "prompt_tail64"],
            Kind::Distinct | Kind::Shared8 => &["hit64", "hit256", "hit512"],
        };
        for case in cases {
            plots.latencies(at, "lookup", case, "nobody writing")?;
        }
        plots.latencies(at, "cold", cases[0], "cold caches")?;
        plots.latencies(at, "writer", cases[0], "under a writer")?;
        plots.rates(at)?;
        plots.churn(at)?;
    }
    plots.memory(head)?;
    plots.sizes(head)?;
    Ok(plots.drawn)
}

impl Plots<'_> {
    /// Distributions of latency.
    fn latencies(&mut self, at: At, measure: &str, case: &str, how: &str) -> Result<()> {
        let mut series = Vec::new();
        for index in INDEXES {
            for call in calls(index) {
                let curve = self.figures.curve(at, index, &format!("{measure}.{case}.{call}"));
                let name = format!("{index} {call}");
                series.extend(curve.map(|values| Series { name, values }));
            }
        }
        let title = format!("Lookup, {}, {case}, {how}", at.kind.name());
        let axes =
            Axes { title: &title, x: "ns", y: "share of lookups", x_scale: Scale::Logarithmic };
        self.lines(&format!("{measure}-{}-{case}.svg", at.kind.name()), &axes, &series)
    }

    fn rates(&mut self, at: At) -> Result<()> {
        let groups: Vec<String> = RATES.iter().map(|(_, label)| (*label).to_owned()).collect();
        let rate = |index: &str, what: &str| {
            self.figures.get(at, index, &format!("{what}.cpu_rate")).map_or(0.0, |at| at.median)
        };
        let title = format!("Throughput, {}", at.kind.name());
        let axes =
            Axes { title: &title, x: "", y: "blocks per CPU second", x_scale: Scale::Linear };
        let series: Vec<Series<f64>> = INDEXES
            .iter()
            .map(|&index| Series {
                name: index.to_owned(),
                values: RATES.iter().map(|(what, _)| rate(index, what)).collect(),
            })
            .collect();
        self.bars(&format!("throughput-{}.svg", at.kind.name()), &axes, &groups, &series)
    }

    fn churn(&mut self, at: At) -> Result<()> {
        let curve = |index: &str| self.figures.curve(at, index, "churn.memory");
        let series = of_indexes(curve);
        let title = format!("Memory while turning over, {}", at.kind.name());
        let axes =
            Axes { title: &title, x: "turnovers", y: "bytes per pair", x_scale: Scale::Linear };
        self.lines(&format!("churn-{}.svg", at.kind.name()), &axes, &series)
    }

    fn memory(&mut self, head: &Head) -> Result<()> {
        let groups: Vec<String> = KINDS.iter().map(|kind| kind.name()).collect();
        let bytes = |index: &str, kind: Kind| {
            let figure = self.figures.get(At::new(kind, head.pairs), index, "memory.full");
            figure.map_or(0.0, |figure| figure.median)
        };
        let axes = Axes { title: "Memory", x: "", y: "bytes per pair", x_scale: Scale::Linear };
        let series: Vec<Series<f64>> = INDEXES
            .iter()
            .map(|&index| Series {
                name: index.to_owned(),
                values: KINDS.iter().map(|&kind| bytes(index, kind)).collect(),
            })
            .collect();
        self.bars("memory.svg", &axes, &groups, &series)
    }

    /// Memory and latency against pairs.
    fn sizes(&mut self, head: &Head) -> Result<()> {
        let sizes = || [head.pairs].into_iter().chain(head.sweep.iter().copied());
        let against_pairs = |index: &str, name: &str| {
            let point = |pairs: usize| {
                let figure = self.figures.get(At::new(Kind::Distinct, pairs), index, name)?;
                Some((pairs as f64, figure.median))
            };
            let points: Vec<(f64, f64)> = sizes().filter_map(point).collect();
            (points.len() > 1).then_some(points)
        };
        let memory = of_indexes(|index| against_pairs(index, "memory.full"));
        let fastest = |index: &str| {
            let call = if index == CHAIN { "score_into" } else { calls(index)[0] };
            against_pairs(index, &format!("lookup.hit256.{call}.p50_ns"))
        };
        let latency = of_indexes(fastest);
        let x_scale = Scale::Logarithmic;
        let axes = Axes { title: "Memory, distinct", x: "pairs", y: "bytes per pair", x_scale };
        self.lines("memory-pairs.svg", &axes, &memory)?;
        let title = "Lookup p50, hit 256, distinct";
        let axes = Axes { title, x: "pairs", y: "ns", x_scale };
        self.lines("lookup-pairs.svg", &axes, &latency)
    }

    fn lines(&mut self, file: &str, axes: &Axes<'_>, series: &[Series<(f64, f64)>]) -> Result<()> {
        if series.iter().any(|line| line.name.starts_with(OURS)) {
            lines(&self.folder.join(file), axes, series)?;
            self.drawn.push((file.to_owned(), axes.title.to_owned()));
        }
        Ok(())
    }

    fn bars(
        &mut self,
        file: &str,
        axes: &Axes<'_>,
        groups: &[String],
        series: &[Series<f64>],
    ) -> Result<()> {
        if series.iter().flat_map(|bars| &bars.values).any(|&value| value > 0.0) {
            bars(&self.folder.join(file), axes, groups, series)?;
            self.drawn.push((file.to_owned(), axes.title.to_owned()));
        }
        Ok(())
    }
}

/// One line for each index that has points.
fn of_indexes(points: impl Fn(&str) -> Option<Vec<(f64, f64)>>) -> Vec<Series<(f64, f64)>> {
    let line =
        |&index: &&str| points(index).map(|values| Series { name: index.to_owned(), values });
    INDEXES.iter().filter_map(line).collect()
}
