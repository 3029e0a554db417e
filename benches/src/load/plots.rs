//! Plots: distributions of latencies, and answers at increasing load.

use super::record::{Record, middle, offered};
use bench_figures::number::median;
use bench_figures::{Axis, Plot};
use std::collections::BTreeMap;

const TARGETS: [&str; 2] = ["index", "echo"];
const MODES: [&str; 2] = ["unary", "stream"];

/// Plots of the measurements.
pub fn all(records: &[Record]) -> Vec<Plot> {
    let mut plots = Vec::new();
    for (name, y, value) in [
        ("answered", "answers a second", (|at| at.requests_per_second) as fn(&Record) -> f64),
        ("p50", "p50, µs", |at| at.p50_us),
        ("p99", "p99, µs", |at| at.p99_us),
    ] {
        plots.push(over_offered(records, name, y, value));
    }
    for (part, how) in [("closed", "16 in flight"), ("open", "30 % load")] {
        for shape in ["hash-256", "tokens-8k"] {
            plots.push(latencies(records, part, shape, how));
        }
    }
    plots.push(beside_events(records));
    plots
}

/// A value over the rate of queries.
fn over_offered(records: &[Record], name: &str, y: &str, value: fn(&Record) -> f64) -> Plot {
    let mut lines: BTreeMap<String, Vec<(f64, f64)>> = BTreeMap::new();
    for ((mode, target, _), row) in offered(records) {
        let point = (middle(&row, |at| at.rate.unwrap_or_default()), middle(&row, value));
        lines.entry(format!("{target} {mode}")).or_default().push(point);
    }
    // A stream is many times faster than single calls.
    let axes = (Axis::logarithmic("questions a second"), Axis::logarithmic(y));
    let title = format!("FindMatches, hash-256, offered load: {name}");
    let plot = Plot::lines(format!("load-offered-{name}"), title, axes.0, axes.1);
    lines.into_iter().fold(plot, |plot, (name, points)| plot.with_line(name, points))
}

/// Compares the index with the echo, for single calls and in a stream.
fn latencies(records: &[Record], part: &str, shape: &str, how: &str) -> Plot {
    let mut plot = distributions(format!("load-{part}-{shape}"), format!("{shape}, {how}"));
    for mode in MODES {
        for target in TARGETS {
            let there = |at: &Record| {
                (&*at.part, &*at.shape, &*at.mode, &*at.target) == (part, shape, mode, target)
                    && matches!(at.in_flight, 0 | 16)
            };
            plot = plot.with_line(format!("{target} {mode}"), distribution(records, there));
        }
    }
    plot
}

/// The index with and without events during the queries.
fn beside_events(records: &[Record]) -> Plot {
    let title = "30 % load, with and without events beside it".to_owned();
    let mut plot = distributions("load-ingest".to_owned(), title);
    for mode in MODES {
        for (part, what) in [("quiet", "without"), ("ingest", "with events")] {
            let there = |at: &Record| (&*at.part, &*at.mode, &*at.target) == (part, mode, "index");
            plot = plot.with_line(format!("{mode}, {what}"), distribution(records, there));
        }
    }
    plot
}

fn distributions(name: String, what: String) -> Plot {
    let axes = (Axis::logarithmic("µs"), Axis::linear("share of questions"));
    Plot::lines(name, format!("FindMatches, {what}"), axes.0, axes.1)
}

/// Points (latency, fraction): the median over the trials at each point.
fn distribution(records: &[Record], there: impl Fn(&Record) -> bool) -> Vec<(f64, f64)> {
    let mut points: BTreeMap<u64, Vec<f64>> = BTreeMap::new();
    for record in records.iter().filter(|record| there(record)) {
        for &(percentile, latency) in &record.latencies_us {
            // Percentiles have one digit after the point.
            points.entry((percentile * 10.0).round() as u64).or_default().push(latency);
        }
    }
    let point = |(tenths, latencies): (u64, Vec<f64>)| (median(&latencies), tenths as f64 / 1e3);
    points.into_iter().map(point).collect()
}
