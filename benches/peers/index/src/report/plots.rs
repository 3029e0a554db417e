//! Plots of measurements that are easier to see than to read.

use super::figures::{At, Figures, INDEXES, SHARDED, calls};
use crate::line::QUANTILES;
use crate::plan::Size;
use crate::workload::{Case, Kind, cases};
use bench_figures::{Axis, Part, Plot};

/// Work in the throughput plots: its name in figures, and its label.
const RATES: [(&str, &str); 5] = [
    ("store", "store"),
    ("remove.tail", "remove: tail"),
    ("remove.scattered", "scattered"),
    ("remove.events", "events"),
    ("remove.random", "random"),
];
/// Number of blocks of the lookups whose distribution is shown.
const BLOCKS: usize = 256;

/// Adds all plots with measurements.
pub(crate) fn add(part: &mut Part, figures: &Figures, size: Size) {
    for kind in Kind::ALL {
        let at = At::new(kind, size.pairs);
        for (measure, quantile, how) in
            [("lookup", "p50", "nobody writing"), ("writer", "p99", "under a writer")]
        {
            part.add_plot(lengths(figures, at, (measure, how), quantile));
            part.add_plot(distribution(figures, at, (measure, how)));
        }
        part.add_plot(rates(figures, at));
        part.add_plot(churn(figures, at));
    }
    part.add_plot(memory(figures, size, ("index-memory", "Memory"), &INDEXES));
    let shards = ("index-memory-shards", "Memory, 1, 2 and 4 shards");
    part.add_plot(memory(figures, size, shards, &SHARDED));
    let plot = |name: &str, title: &str, y: &str| {
        Plot::lines(name, title, Axis::logarithmic("pairs"), Axis::linear(y))
    };
    let memory = plot("index-memory-pairs", "Memory over pairs, distinct", "bytes per pair");
    part.add_plot(with_indexes(memory, |index| over_pairs(figures, size, index, "memory.full")));
    let title = format!("Lookup of {BLOCKS} blocks over pairs, distinct");
    part.add_plot(with_calls(plot("index-lookup-pairs", &title, "p50, ns"), |index, call| {
        over_pairs(figures, size, index, &format!("lookup.hit{BLOCKS}.{call}.p50_ns"))
    }));
}

/// Time of lookups by the length of the cached prefix.
fn lengths(figures: &Figures, at: At, (measure, how): (&str, &str), quantile: &str) -> Plot {
    let kind = at.kind.name();
    let axes = (Axis::linear("blocks"), Axis::linear(format!("{quantile}, ns")));
    let title = format!("Lookup by length of the prefix, {kind}, {how}");
    let plot = Plot::lines(format!("index-{measure}-length-{kind}"), title, axes.0, axes.1);
    with_calls(plot, |index, call| {
        let hits = cases(at.kind).iter().filter(|case| case.unknown == 0);
        let point = |case: &Case| {
            let name = format!("{measure}.{}.{call}.{quantile}_ns", case.name);
            Some((case.known as f64, figures.get(at, index, &name)?.median))
        };
        hits.filter_map(point).collect()
    })
}

/// Distribution of a lookup's latencies.
fn distribution(figures: &Figures, at: At, (measure, how): (&str, &str)) -> Plot {
    let kind = at.kind.name();
    let case = cases(at.kind).iter().find(|case| (case.known, case.unknown) == (BLOCKS, 0));
    let case = case.map_or("", |case| case.name);
    let axes = (Axis::logarithmic("ns"), Axis::linear("share of lookups"));
    let title = format!("Lookup of {BLOCKS} blocks, {kind}, {how}");
    let plot = Plot::lines(format!("index-{measure}-latency-{kind}"), title, axes.0, axes.1);
    with_calls(plot, |index, call| {
        let point = |&(label, share): &(&str, f64)| {
            let name = format!("{measure}.{case}.{call}.{label}_ns");
            Some((figures.get(at, index, &name)?.median, share))
        };
        QUANTILES.iter().filter_map(point).collect()
    })
}

fn rates(figures: &Figures, at: At) -> Plot {
    let kind = at.kind.name();
    let name = format!("index-throughput-{kind}");
    let title = format!("Throughput, {kind}");
    let y = Axis::linear("blocks per CPU second");
    let plot = Plot::bars(name, title, RATES.map(|(_, label)| label), y);
    INDEXES.into_iter().fold(plot, |plot, index| {
        let rate = |(what, _)| Some(figures.get(at, index, &format!("{what}.cpu_rate"))?.median);
        plot.with_bars(index, RATES.map(rate))
    })
}

/// Memory during churn.
fn churn(figures: &Figures, at: At) -> Plot {
    let kind = at.kind.name();
    let name = format!("index-churn-{kind}");
    let title = format!("Memory while turning over, {kind}");
    let axes = (Axis::linear("turnovers"), Axis::linear("bytes per pair"));
    let plot = Plot::lines(name, title, axes.0, axes.1);
    with_indexes(plot, |index| {
        let point = |turnover: u32| {
            let figure = figures.get(at, index, &format!("churn.memory.{turnover}"))?;
            Some((f64::from(turnover), figure.median))
        };
        (1..).map_while(point).collect()
    })
}

fn memory(figures: &Figures, size: Size, (name, title): (&str, &str), indexes: &[&str]) -> Plot {
    let plot = Plot::bars(name, title, Kind::ALL.map(Kind::name), Axis::linear("bytes per pair"));
    indexes.iter().fold(plot, |plot, &index| {
        let of = |kind| figures.get(At::new(kind, size.pairs), index, "memory.full");
        plot.with_bars(index, Kind::ALL.map(|kind| Some(of(kind)?.median)))
    })
}

fn over_pairs(figures: &Figures, size: Size, index: &str, name: &str) -> Vec<(f64, f64)> {
    let point = |pairs: usize| {
        let figure = figures.get(At::new(Kind::Distinct, pairs), index, name)?;
        Some((pairs as f64, figure.median))
    };
    [size.pairs].into_iter().chain(size.sweep.iter().copied()).filter_map(point).collect()
}

/// A line for each index.
fn with_indexes(plot: Plot, points: impl Fn(&str) -> Vec<(f64, f64)>) -> Plot {
    INDEXES.into_iter().fold(plot, |plot, index| plot.with_line(index, points(index)))
}

/// A line for each call of each index.
fn with_calls(plot: Plot, points: impl Fn(&str, &str) -> Vec<(f64, f64)>) -> Plot {
    INDEXES.into_iter().fold(plot, |plot, index| {
        calls(index)
            .iter()
            .fold(plot, |plot, call| plot.with_line(format!("{index} {call}"), points(index, call)))
    })
}
