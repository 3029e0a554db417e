//! Plots: latencies, and what is answered when so much is asked.

use super::report::Record;
use bench_figures::number::median;
use bench_figures::{Axes, Drawing, Plot, Scale, Series};
use std::collections::BTreeMap;

const TARGETS: [&str; 2] = ["index", "echo"];
const MODES: [&str; 2] = ["unary", "stream"];

type Points = Vec<(f64, f64)>;

/// Plots of what was measured.
#[must_use]
pub fn all(records: &[Record]) -> Vec<Plot> {
    let mut plots = Vec::new();
    for (part, shape, how) in [
        ("closed", "hash-256", "16 in flight"),
        ("closed", "tokens-8k", "16 in flight"),
        ("open", "hash-256", "30 % load"),
        ("open", "tokens-8k", "30 % load"),
    ] {
        plots.extend(latencies(records, part, shape, how));
    }
    plots.extend(beside_events(records));
    let answered = offered(records, |record| record.requests_per_second);
    let title = "hash-256: answered against asked";
    // A stream is many times as fast as single calls.
    let axes = |y: &str| Axes {
        y_scale: Scale::Logarithmic,
        ..Axes::logarithmic("questions a second", y)
    };
    let answers = axes("answers a second");
    plots.extend(lines("load-offered", title, answers, answered));
    let tail = offered(records, |record| record.p99_us);
    let title = "hash-256: p99 against asked";
    plots.extend(lines("load-offered-p99", title, axes("p99, µs"), tail));
    plots
}

/// Distributions of latency, unary and in a stream, ours and the echo's.
fn latencies(records: &[Record], part: &str, shape: &str, how: &str) -> Option<Plot> {
    let mut series = Vec::new();
    for mode in MODES {
        for target in TARGETS {
            let there = |record: &Record| {
                let place = (&*record.part, &*record.shape, &*record.mode);
                place == (part, shape, mode)
                    && record.target == target
                    && matches!(record.in_flight, 0 | 16)
            };
            let curve = distribution(records, there);
            series.extend(curve.map(|values| Series { name: format!("{target} {mode}"), values }));
        }
    }
    let (name, title) = (format!("load-{part}-{shape}"), format!("FindMatches, {shape}, {how}"));
    lines(&name, &title, Axes::logarithmic("µs", "share of questions"), series)
}

/// The index with and without events beside the questions.
fn beside_events(records: &[Record]) -> Option<Plot> {
    let mut series = Vec::new();
    for mode in MODES {
        for part in ["quiet", "ingest"] {
            let there = |record: &Record| {
                (&*record.part, &*record.mode, &*record.target) == (part, mode, "index")
            };
            let curve = distribution(records, there);
            series.extend(curve.map(|values| Series { name: format!("{mode}, {part}"), values }));
        }
    }
    let title = "FindMatches, 30 % load, with and without events beside it";
    lines("load-ingest", title, Axes::logarithmic("µs", "share of questions"), series)
}

/// (latency, share), point by point the median over the trials.
fn distribution(records: &[Record], there: impl Fn(&Record) -> bool) -> Option<Points> {
    let mut points: BTreeMap<u64, Vec<f64>> = BTreeMap::new();
    for record in records.iter().filter(|record| there(record)) {
        for &(percentile, latency) in &record.latencies_us {
            // Percentiles have one digit after the point.
            points.entry((percentile * 10.0) as u64).or_default().push(latency);
        }
    }
    let point = |(tenths, latencies): (u64, Vec<f64>)| (median(&latencies), tenths as f64 / 1e3);
    (!points.is_empty()).then(|| points.into_iter().map(point).collect())
}

/// (asked, value) of each mode and target: the n-th rate of each trial is one point.
fn offered(records: &[Record], value: fn(&Record) -> f64) -> Vec<Series<(f64, f64)>> {
    let mut series = Vec::new();
    for mode in MODES {
        for target in TARGETS {
            let mut trials: BTreeMap<usize, Points> = BTreeMap::new();
            for record in records.iter().filter(|record| {
                (&*record.part, &*record.mode, &*record.target) == ("offered", mode, target)
            }) {
                let point = (record.rate.unwrap_or_default(), value(record));
                trials.entry(record.trial).or_default().push(point);
            }
            let count = trials.values().map(Vec::len).min().unwrap_or_default();
            let middle = |at: usize| {
                let points = || trials.values().filter_map(move |points| points.get(at));
                let asked: Vec<f64> = points().map(|point| point.0).collect();
                let values: Vec<f64> = points().map(|point| point.1).collect();
                (median(&asked), median(&values))
            };
            let values: Points = (0..count).map(middle).collect();
            if !values.is_empty() {
                series.push(Series { name: format!("{target} {mode}"), values });
            }
        }
    }
    series
}

fn lines(name: &str, title: &str, axes: Axes, series: Vec<Series<(f64, f64)>>) -> Option<Plot> {
    let (name, title) = (name.to_owned(), title.to_owned());
    let drawing = Drawing::Lines(series);
    (drawing != Drawing::Lines(Vec::new())).then_some(Plot { name, title, axes, drawing })
}
