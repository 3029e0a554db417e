//! What the measurements must reach: ratios within one run, medians over its trials.

use super::report::{Record, median};
use std::collections::BTreeMap;

/// Part of the hashing time by which a question with tokens may be slower than the echo.
const HASHING_SHARE: f64 = 1.2;

/// One bar.
#[derive(Debug, Clone)]
pub struct Bar {
    /// What is compared.
    pub name: String,
    /// What it must be.
    pub limit: f64,
    /// Whether that is the most, not the least.
    pub at_most: bool,
    /// What it is.
    pub value: f64,
}

impl Bar {
    /// Whether it is met.
    #[must_use]
    pub fn met(&self) -> bool {
        if self.at_most { self.value <= self.limit } else { self.value >= self.limit }
    }
}

/// Where to look: part, shape, mode, in flight.
type Place<'a> = (&'a str, &'a str, &'a str, usize);

/// The record of one target there, in each trial.
fn trials<'a>(
    records: &'a [Record],
    place: Place<'_>,
    target: &str,
) -> BTreeMap<usize, &'a Record> {
    let there = |record: &&Record| {
        (record.part, record.shape, record.mode, record.in_flight) == place
            && record.target == target
    };
    records.iter().filter(there).map(|record| (record.trial, record)).collect()
}

/// Median over the trials of what is made of both targets' records there; none if there are none.
fn both(
    records: &[Record],
    place: Place<'_>,
    value: impl Fn(&Record, &Record) -> f64,
) -> Option<f64> {
    let (index, echo) = (trials(records, place, "index"), trials(records, place, "echo"));
    let values = index.iter().filter_map(|(trial, at)| Some(value(at, echo.get(trial)?)));
    let values: Vec<f64> = values.collect();
    (!values.is_empty()).then(|| median(values))
}

fn speed(index: &Record, echo: &Record) -> f64 {
    index.requests_per_second / echo.requests_per_second
}

/// All bars that there are measurements for.
#[must_use]
pub fn bars(records: &[Record]) -> Vec<Bar> {
    let mut bars = Vec::new();
    let mut add = |name: String, limit: f64, at_most: bool, value: Option<f64>| {
        bars.extend(value.map(|value| Bar { name, limit, at_most, value }));
    };
    for shape in ["hash-256", "hash-512", "hash-256-all"] {
        let place = ("closed", shape, "unary", 16);
        let value = both(records, place, |index, echo| index.p50_us / echo.p50_us);
        add(format!("{shape}, unary, 16 in flight: p50 against the echo's"), 1.25, true, value);
        for in_flight in [16, 64] {
            let stream = both(records, ("closed", shape, "stream", in_flight), speed);
            let name = format!("{shape}, stream, {in_flight} in flight: rate against the echo's");
            add(name, 0.7, false, stream);
            let unary = both(records, ("closed", shape, "unary", in_flight), speed);
            let name =
                format!("{shape}, {in_flight} in flight: stream to unary, against the echo's own");
            add(name, 0.8, false, stream.zip(unary).map(|(stream, unary)| stream / unary));
        }
    }
    for shape in ["tokens-1k", "tokens-8k", "tokens-128k"] {
        let place = ("closed", shape, "unary", 1);
        let value = both(records, place, |index, echo| {
            index.p50_us / (echo.p50_us + HASHING_SHARE * index.hashing_us)
        });
        let name = format!("{shape}, unary, 1 in flight: p50 against echo + 1.2 × hashing");
        add(name, 1.0, true, value);
        let value = both(records, ("closed", shape, "unary", 16), |index, echo| {
            index.server_cpu_us / (echo.server_cpu_us + HASHING_SHARE * index.hashing_us)
        });
        let name = format!("{shape}, unary, 16 in flight: CPU against echo + 1.2 × hashing");
        add(name, 1.0, true, value);
    }
    let ingested = records.iter().filter_map(|record| record.ingested);
    let reached = ingested.map(|at| at.blocks_per_second / at.asked_per_second as f64);
    let reached: Vec<f64> = reached.collect();
    let share = (!reached.is_empty()).then(|| median(reached));
    add(
        "block operations applied beside the questions, of those wanted".to_owned(),
        0.95,
        false,
        share,
    );
    for mode in ["unary", "stream"] {
        add(
            format!("{mode}, 30 % load, events beside: p99 against quiet"),
            2.0,
            true,
            ingest(records, mode),
        );
    }
    bars
}

/// How much longer the p99 is with events beside the questions.
fn ingest(records: &[Record], mode: &str) -> Option<f64> {
    let shape = records.iter().find(|record| record.part == "ingest")?.shape;
    let loud = trials(records, ("ingest", shape, mode, 0), "index");
    let quiet = trials(records, ("quiet", shape, mode, 0), "index");
    let ratios = loud.iter().filter_map(|(trial, at)| Some(at.p99_us / quiet.get(trial)?.p99_us));
    let ratios: Vec<f64> = ratios.collect();
    (!ratios.is_empty()).then(|| median(ratios))
}
