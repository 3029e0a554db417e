//! The plots of a report.

use super::figures::{At, CHAIN, Figures, INDEXES, OURS, SHARDED, calls};
use crate::plan::Size;
use crate::workload::Kind;
use bench_figures::{Axes, Drawing, Plot, Series};

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
    drawn: Vec<Plot>,
}

/// Plots of what was measured.
pub(crate) fn all(figures: &Figures, size: Size) -> Vec<Plot> {
    let mut plots = Plots { figures, drawn: Vec::new() };
    for kind in KINDS {
        let at = At::new(kind, size.pairs);
        let cases: &[&str] = match kind {
            Kind::Prefix64 => &["prompt", "prompt_tail64"],
            Kind::Distinct | Kind::Shared8 => &["hit64", "hit256", "hit512"],
        };
        for case in cases {
            plots.latencies(at, "lookup", case, "nobody writing");
        }
        plots.latencies(at, "cold", cases[0], "cold caches");
        plots.latencies(at, "writer", cases[0], "under a writer");
        plots.rates(at);
        plots.churn(at);
    }
    plots.memory(size, "memory", "Memory", &INDEXES);
    plots.memory(size, "memory-shards", "Memory, 1, 2 and 4 shards", &SHARDED);
    plots.sizes(size);
    plots.drawn
}

impl Plots<'_> {
    /// Distributions of latency.
    fn latencies(&mut self, at: At, measure: &str, case: &str, how: &str) {
        let mut series = Vec::new();
        for index in INDEXES {
            for call in calls(index) {
                let curve = self.figures.curve(at, index, &format!("{measure}.{case}.{call}"));
                let name = format!("{index} {call}");
                series.extend(curve.map(|values| Series { name, values }));
            }
        }
        let title = format!("Lookup, {}, {case}, {how}", at.kind.name());
        let axes = Axes::logarithmic("ns", "share of lookups");
        self.lines(format!("{measure}-{}-{case}", at.kind.name()), title, axes, series);
    }

    fn rates(&mut self, at: At) {
        let groups = RATES.iter().map(|(_, label)| (*label).to_owned()).collect();
        let rate = |index: &str, what: &str| {
            self.figures.get(at, index, &format!("{what}.cpu_rate")).map_or(0.0, |at| at.median)
        };
        let series = INDEXES
            .iter()
            .map(|&index| Series {
                name: index.to_owned(),
                values: RATES.iter().map(|(what, _)| rate(index, what)).collect(),
            })
            .collect();
        let (name, title) = (at.kind.name(), format!("Throughput, {}", at.kind.name()));
        let axes = Axes::linear("", "blocks per CPU second");
        self.bars(format!("throughput-{name}"), title, axes, groups, series);
    }

    fn churn(&mut self, at: At) {
        let series = of_indexes(|index| self.figures.curve(at, index, "churn.memory"));
        let (name, title) =
            (at.kind.name(), format!("Memory while turning over, {}", at.kind.name()));
        let axes = Axes::linear("turnovers", "bytes per pair");
        self.lines(format!("churn-{name}"), title, axes, series);
    }

    fn memory(&mut self, size: Size, name: &str, title: &str, indexes: &[&str]) {
        let groups: Vec<String> = KINDS.iter().map(|kind| kind.name()).collect();
        let figure = |index: &str, kind: Kind| {
            self.figures.get(At::new(kind, size.pairs), index, "memory.full")
        };
        let measured = |index: &&&str| KINDS.iter().any(|&kind| figure(index, kind).is_some());
        let series: Vec<Series<f64>> = indexes
            .iter()
            .filter(measured)
            .map(|&index| Series {
                name: index.to_owned(),
                values: KINDS
                    .iter()
                    .map(|&kind| figure(index, kind).map_or(0.0, |figure| figure.median))
                    .collect(),
            })
            .collect();
        let axes = Axes::linear("", "bytes per pair");
        if series.len() > 1 {
            self.bars(name.to_owned(), title.to_owned(), axes, groups, series);
        }
    }

    /// Memory and latency against pairs.
    fn sizes(&mut self, size: Size) {
        let sizes = || [size.pairs].into_iter().chain(size.sweep.iter().copied());
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
        let title = "Memory against pairs, distinct".to_owned();
        let axes = Axes::logarithmic("pairs", "bytes per pair");
        self.lines("memory-pairs".to_owned(), title, axes, memory);
        let title = "Lookup p50 against pairs, hit 256, distinct".to_owned();
        self.lines("lookup-pairs".to_owned(), title, Axes::logarithmic("pairs", "ns"), latency);
    }

    fn lines(&mut self, name: String, title: String, axes: Axes, series: Vec<Series<(f64, f64)>>) {
        if series.iter().any(|line| line.name.starts_with(OURS)) {
            self.drawn.push(Plot { name, title, axes, drawing: Drawing::Lines(series) });
        }
    }

    fn bars(
        &mut self,
        name: String,
        title: String,
        axes: Axes,
        groups: Vec<String>,
        series: Vec<Series<f64>>,
    ) {
        if series.iter().flat_map(|bars| &bars.values).any(|&value| value > 0.0) {
            self.drawn.push(Plot { name, title, axes, drawing: Drawing::Bars(groups, series) });
        }
    }
}

/// One line for each index that has points.
fn of_indexes(points: impl Fn(&str) -> Option<Vec<(f64, f64)>>) -> Vec<Series<(f64, f64)>> {
    let line =
        |&index: &&str| points(index).map(|values| Series { name: index.to_owned(), values });
    INDEXES.iter().filter_map(line).collect()
}
