//! Records of measurements: one line of JSON each.

use super::closed::Tally;
use bench_figures::number::median;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

/// Percentiles in a record, for curves.
const PERCENTILES: [f64; 13] =
    [1.0, 5.0, 10.0, 25.0, 50.0, 75.0, 90.0, 95.0, 98.0, 99.0, 99.5, 99.9, 100.0];

/// Events published during a measurement.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct Ingested {
    /// Requested block operations per second.
    pub asked_per_second: u64,
    /// Applied block operations per second.
    pub blocks_per_second: f64,
    /// Number of cores used by the publishers' process.
    pub publisher_cores: f64,
}

/// One measurement of one server.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Record {
    /// Part of the run.
    pub part: String,
    /// Number of the round.
    pub trial: usize,
    /// Kind of query.
    pub shape: String,
    /// "unary" or "stream".
    pub mode: String,
    /// "index" or "echo".
    pub target: String,
    /// Queries in flight of a closed loop; 0 for an open loop.
    pub in_flight: usize,
    /// Queries per second of an open loop.
    pub rate: Option<f64>,
    /// Bytes of a query.
    pub question_bytes: usize,
    /// Bytes of an answer.
    pub answer_bytes: usize,
    /// Answers per second that arrived in time.
    pub requests_per_second: f64,
    /// Median latency, in microseconds.
    pub p50_us: f64,
    /// 99th percentile of the latency, in microseconds.
    pub p99_us: f64,
    /// 99.9th percentile of the latency, in microseconds.
    pub p999_us: f64,
    /// Percentiles with their latencies.
    pub latencies_us: Vec<(f64, f64)>,
    /// Processor time of the server's process per answer, in microseconds.
    pub server_cpu_us: f64,
    /// Time to hash a query's tokens, measured in this run, in microseconds.
    pub hashing_us: f64,
    /// Number of wrong answers and errors.
    pub failures: u64,
    /// Events published during the measurement.
    pub ingested: Option<Ingested>,
}

impl Record {
    /// Creates a record from a window of this length.
    pub fn new(tally: &Tally, cpu: Duration, length: Duration) -> Self {
        let at = |percentile| tally.latencies.value_at_percentile(percentile) as f64 / 1e3;
        let answers = tally.served as f64;
        Self {
            part: String::new(),
            trial: 0,
            shape: String::new(),
            mode: String::new(),
            target: String::new(),
            in_flight: 0,
            rate: None,
            question_bytes: 0,
            answer_bytes: 0,
            requests_per_second: answers / length.as_secs_f64(),
            p50_us: at(50.0),
            p99_us: at(99.0),
            p999_us: at(99.9),
            latencies_us: PERCENTILES.map(|percentile| (percentile, at(percentile))).to_vec(),
            server_cpu_us: cpu.as_secs_f64() * 1e6 / answers.max(1.0),
            hashing_us: 0.0,
            failures: tally.failures,
            ingested: None,
        }
    }

    /// Adds its place in the run.
    pub fn at(
        self,
        (part, trial): (&str, usize),
        (shape, mode, target): (&str, &str, &str),
        (in_flight, rate): (usize, Option<f64>),
    ) -> Self {
        let [part, shape, mode, target] = [part, shape, mode, target].map(str::to_owned);
        Self { part, trial, shape, mode, target, in_flight, rate, ..self }
    }

    /// The load: queries in flight, or the fraction of the capacity.
    pub fn load(&self) -> String {
        match self.rate {
            Some(_) => "30 %".to_owned(),
            None => self.in_flight.to_string(),
        }
    }
}

impl fmt::Display for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { part, shape, mode, target, failures, .. } = self;
        write!(f, "{part:6} {shape:12} {mode:6} {:>4} {target:5}", self.load())?;
        write!(f, " {:9.0}/s p50 {:8.1}", self.requests_per_second, self.p50_us)?;
        write!(f, " p99 {:8.1} p99.9 {:8.1} us", self.p99_us, self.p999_us)?;
        write!(f, "  cpu {:6.2} us  failures {failures}", self.server_cpu_us)?;
        if let Some(Ingested { blocks_per_second, publisher_cores, .. }) = self.ingested {
            write!(f, "  beside {blocks_per_second:.0} blocks/s, {publisher_cores:.2} cores")?;
        }
        Ok(())
    }
}

/// Answers of each server at increasing load: by mode and target, the n-th rate of all trials.
pub fn offered(records: &[Record]) -> BTreeMap<(&str, &str, usize), Vec<&Record>> {
    let mut counts: BTreeMap<(usize, &str, &str), usize> = BTreeMap::new();
    let mut rows: BTreeMap<_, Vec<&Record>> = BTreeMap::new();
    for record in records.iter().filter(|record| record.part == "offered") {
        let count = counts.entry((record.trial, &record.mode, &record.target)).or_default();
        rows.entry((&*record.mode, &*record.target, *count)).or_default().push(record);
        *count += 1;
    }
    rows
}

/// The median of a value.
pub fn middle(records: &[&Record], value: fn(&Record) -> f64) -> f64 {
    median(&records.iter().map(|record| value(record)).collect::<Vec<f64>>())
}
