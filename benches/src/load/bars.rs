//! Targets of the measurements: ratios within one run, as medians over its trials.

use super::record::Record;
use bench_figures::{Bar, Figure, Limit};
use std::collections::BTreeMap;

/// Maximum slowdown of a query with tokens compared with the echo, as a multiple of the hashing time.
const HASHING_SHARE: f64 = 1.2;
/// Kinds of queries by hashes.
const HASHES: [&str; 3] = ["hash-256", "hash-512", "hash-256-all"];
/// Kinds of queries by tokens.
const TOKENS: [&str; 3] = ["tokens-1k", "tokens-8k", "tokens-128k"];

/// Selects measurements: part, shape, mode, queries in flight.
type Place<'a> = (&'a str, &'a str, &'a str, usize);
/// Two records of the same trial.
type Pair<'a> = (&'a Record, &'a Record);
/// Computes the value of a pair.
type Value = fn(&Record, &Record) -> f64;

/// The selected record of one target, in each trial.
fn trials<'a>(
    records: &'a [Record],
    place: Place<'_>,
    target: &str,
) -> BTreeMap<usize, &'a Record> {
    let there = |record: &&Record| {
        (&*record.part, &*record.shape, &*record.mode, record.in_flight) == place
            && record.target == target
    };
    records.iter().filter(there).map(|record| (record.trial, record)).collect()
}

/// Pairs of index and echo, in each trial.
fn beside_echo<'a>(records: &'a [Record], place: Place<'_>) -> Vec<Pair<'a>> {
    let index = trials(records, place, "index");
    let echo = trials(records, place, "echo");
    index.into_iter().filter_map(|(trial, at)| Some((at, *echo.get(&trial)?))).collect()
}

/// Adds measurements to a target: the median of the trials' ratios, and both sides as formatted by `shown`.
fn measured(bar: Bar, pairs: &[Pair<'_>], ratio: Value, shown: (fn(&Record) -> f64, &str)) -> Bar {
    let (value, unit) = shown;
    let side = |figure: Option<Figure>| {
        figure.map(|at| at.side(|value| format!("{value:.0} {unit}"))).unwrap_or_default()
    };
    let ours = side(Figure::of(pairs.iter().map(|(ours, _)| value(ours))));
    let other = side(Figure::of(pairs.iter().map(|(_, other)| value(other))));
    let ratio = Figure::of(pairs.iter().map(|(ours, other)| ratio(ours, other)));
    Bar { ours, other, ..bar.with_ratio(ratio.map(|at| at.median)) }
}

const P50: (fn(&Record) -> f64, &str) = (|record| record.p50_us, "µs");
const P99: (fn(&Record) -> f64, &str) = (|record| record.p99_us, "µs");
const CPU: (fn(&Record) -> f64, &str) = (|record| record.server_cpu_us, "µs CPU");
const RATE: (fn(&Record) -> f64, &str) = (|record| record.requests_per_second, "/s");

/// All targets, with or without measurements.
pub fn bars(records: &[Record]) -> Vec<Bar> {
    let mut bars = Vec::new();
    for shape in HASHES {
        hashes(records, shape, &mut bars);
    }
    for shape in TOKENS {
        tokens(records, shape, &mut bars);
    }
    bars.push(applied(records));
    bars.extend(["unary", "stream"].map(|mode| under_ingest(records, mode)));
    bars.push(failures(records));
    bars
}

fn hashes(records: &[Record], shape: &str, bars: &mut Vec<Bar>) {
    let bar = |what: &str, id: &str, limit: Limit, against: &str| {
        let what = format!("FindMatches {shape}, {what}");
        Bar::ratio(format!("load.{shape}.{id}"), what, limit, against)
    };
    let unary = beside_echo(records, ("closed", shape, "unary", 16));
    let p50 = bar("unary, 16 in flight: p50", "unary16.p50", Limit::AtMost(1.25), "the echo's");
    bars.push(measured(p50, &unary, |index, echo| index.p50_us / echo.p50_us, P50));
    for in_flight in [16, 64] {
        let speed: Value = |index, echo| index.requests_per_second / echo.requests_per_second;
        let stream = beside_echo(records, ("closed", shape, "stream", in_flight));
        let unary = beside_echo(records, ("closed", shape, "unary", in_flight));
        let (what, id) = (
            format!("stream, {in_flight} in flight: requests/s"),
            format!("stream{in_flight}.rate"),
        );
        let rate = bar(&what, &id, Limit::AtLeast(0.7), "the echo stream's");
        let rate = measured(rate, &stream, speed, RATE);
        let unary = measured(bar("", "", Limit::AtLeast(0.0), ""), &unary, speed, RATE);
        let what = format!("{in_flight} in flight: stream to unary");
        let id = format!("stream{in_flight}.gain");
        let gain = bar(&what, &id, Limit::AtLeast(0.8), "the echo's own");
        let ratio = rate.value.zip(unary.value).map(|(stream, unary)| stream / unary);
        bars.push(rate);
        bars.push(gain.with_ratio(ratio));
    }
}

fn tokens(records: &[Record], shape: &str, bars: &mut Vec<Bar>) {
    const AGAINST: &str = "(echo + 1.2 × hashing)";
    let bar = |what: &str, id: &str| {
        let what = format!("FindMatches {shape}, {what}");
        Bar::ratio(format!("load.{shape}.{id}"), what, Limit::AtMost(1.0), AGAINST)
    };
    let one = beside_echo(records, ("closed", shape, "unary", 1));
    let p50: Value = |index, echo| index.p50_us / (echo.p50_us + HASHING_SHARE * index.hashing_us);
    bars.push(measured(bar("unary, 1 in flight: p50", "unary1.p50"), &one, p50, P50));
    let sixteen = beside_echo(records, ("closed", shape, "unary", 16));
    let cpu: Value =
        |index, echo| index.server_cpu_us / (echo.server_cpu_us + HASHING_SHARE * index.hashing_us);
    bars.push(measured(bar("unary, 16 in flight: CPU", "unary16.cpu"), &sixteen, cpu, CPU));
}

/// Target: the publishers reached the requested rate during the queries.
fn applied(records: &[Record]) -> Bar {
    let ingested = records.iter().filter_map(|record| record.ingested);
    let reached = ingested.map(|at| at.blocks_per_second / at.asked_per_second as f64);
    let bar = Bar::ratio(
        "load.ingest.applied".to_owned(),
        "block operations applied beside the questions".to_owned(),
        Limit::AtLeast(0.95),
        "those wanted",
    );
    bar.with_ratio(Figure::of(reached).map(|at| at.median))
}

/// Target: growth of the p99 latency while events are published.
fn under_ingest(records: &[Record], mode: &str) -> Bar {
    let shape = records.iter().find(|record| record.part == "ingest");
    let shape = shape.map_or("", |record| &*record.shape);
    let loud = trials(records, ("ingest", shape, mode, 0), "index");
    let quiet = trials(records, ("quiet", shape, mode, 0), "index");
    let pairs = loud.into_iter().filter_map(|(trial, at)| Some((at, *quiet.get(&trial)?)));
    let pairs: Vec<Pair<'_>> = pairs.collect();
    let bar = Bar::ratio(
        format!("load.ingest.{mode}"),
        format!("FindMatches {mode}, 30 % load, 500 k blocks/s beside it: p99"),
        Limit::AtMost(2.0),
        "the quiet p99",
    );
    measured(bar, &pairs, |loud, quiet| loud.p99_us / quiet.p99_us, P99)
}

/// Target: wrong answers and errors, except those of overload.
fn failures(records: &[Record]) -> Bar {
    let counted = || records.iter().filter(|record| record.part != "offered");
    let failed: u64 = counted().map(|record| record.failures).sum();
    let bar = Bar::new(
        "load.failures".to_owned(),
        "FindMatches: wrong answers and errors, but under overload".to_owned(),
        Limit::AtMost(0.0),
        "none".to_owned(),
    );
    let value = (counted().count() > 0).then_some(failed as f64);
    let measured = value.map_or(String::new(), |failed| format!("{failed:.0}"));
    Bar { value, measured, ..bar }
}

#[cfg(test)]
mod tests {
    use super::super::closed::Tally;
    use super::*;
    use bench_figures::Verdict;
    use std::time::Duration;

    fn record(place: Place<'_>, target: &str, p50_us: f64) -> Record {
        let (part, shape, mode, in_flight) = place;
        let tally = Tally::new().expect("a tally");
        let record = Record::new(&tally, Duration::ZERO, Duration::from_secs(1));
        let record = record.at((part, 0), (shape, mode, target), (in_flight, None));
        Record { p50_us, p99_us: p50_us, requests_per_second: 1e6 / p50_us, ..record }
    }

    fn bar(records: &[Record], id: &str) -> Bar {
        let found = bars(records).into_iter().find(|bar| bar.id == id);
        found.unwrap_or_else(|| panic!("no bar {id}"))
    }

    #[test]
    fn nothing_measured_is_nothing_met() {
        let all = bars(&[]);
        assert_eq!(all.len(), 3 * 5 + 3 * 2 + 4);
        for bar in all {
            assert_eq!(bar.verdict(), Verdict::NotMeasured, "{}", bar.id);
        }
    }

    #[test]
    fn the_index_is_compared_with_the_echo_of_its_trial() {
        let place = ("closed", "hash-256", "unary", 16);
        let records = [record(place, "index", 125.0), record(place, "echo", 100.0)];
        assert_eq!(bar(&records, "load.hash-256.unary16.p50").verdict(), Verdict::Met);
        let alone = records.get(..1).expect("two records");
        assert_eq!(bar(alone, "load.hash-256.unary16.p50").verdict(), Verdict::NotMeasured);
        let slower = [record(place, "index", 126.0), record(place, "echo", 100.0)];
        assert_eq!(bar(&slower, "load.hash-256.unary16.p50").verdict(), Verdict::Missed);
    }

    #[test]
    fn the_gain_of_a_stream_is_relative_to_the_echo() {
        let records = [
            record(("closed", "hash-256", "unary", 16), "index", 100.0),
            record(("closed", "hash-256", "unary", 16), "echo", 100.0),
            record(("closed", "hash-256", "stream", 16), "index", 20.0),
            record(("closed", "hash-256", "stream", 16), "echo", 10.0),
        ];
        assert_eq!(bar(&records, "load.hash-256.stream16.gain").value, Some(0.5));
        assert_eq!(bar(&records, "load.hash-256.stream16.gain").verdict(), Verdict::Missed);
    }

    #[test]
    fn a_failure_is_one_too_many() {
        let mut failed = record(("closed", "hash-256", "unary", 16), "index", 1.0);
        assert_eq!(bar(&[failed.clone()], "load.failures").verdict(), Verdict::Met);
        failed.failures = 1;
        assert_eq!(bar(&[failed], "load.failures").verdict(), Verdict::Missed);
    }
}
