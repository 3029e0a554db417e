//! Records of measurements, and the report made of them.

use super::bars::{self, Bar};
use super::closed::Tally;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt::{self, Write};
use std::time::Duration;

/// Percentiles that a record keeps, for curves.
const PERCENTILES: [f64; 13] =
    [1.0, 5.0, 10.0, 25.0, 50.0, 75.0, 90.0, 95.0, 98.0, 99.0, 99.5, 99.9, 100.0];

/// Events beside a measurement.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Ingested {
    /// Block operations that the publishers are to send.
    pub asked_per_second: u64,
    /// Block operations applied.
    pub blocks_per_second: f64,
    /// Cores that the publishers' process used.
    pub publisher_cores: f64,
}

/// One measurement of one server.
#[derive(Debug, Clone, Serialize)]
pub struct Record {
    /// Part of the run.
    pub part: &'static str,
    /// Round.
    pub trial: usize,
    /// Kind of question.
    pub shape: &'static str,
    /// unary or stream.
    pub mode: &'static str,
    /// index or echo.
    pub target: &'static str,
    /// Questions in flight of a closed loop, 0 in an open one.
    pub in_flight: usize,
    /// Questions a second of an open loop.
    pub rate: Option<f64>,
    /// Bytes of a question.
    pub question_bytes: usize,
    /// Bytes of its answer.
    pub answer_bytes: usize,
    /// Answers.
    pub requests_per_second: f64,
    /// Median latency, in microseconds.
    pub p50_us: f64,
    /// 99th percentile.
    pub p99_us: f64,
    /// 99.9th percentile.
    pub p999_us: f64,
    /// Percentiles and their latencies.
    pub latencies_us: Vec<(f64, f64)>,
    /// Processor time of the server's process per answer.
    pub server_cpu_us: f64,
    /// Time that hashing the tokens of a question takes, measured in this run.
    pub hashing_us: f64,
    /// Wrong answers and errors.
    pub failures: u64,
    /// Events beside it.
    pub ingested: Option<Ingested>,
}

impl Record {
    /// What was measured in a window of this length.
    #[must_use]
    pub fn new(tally: &Tally, cpu: Duration, length: Duration) -> Self {
        let at = |percentile| tally.latencies.value_at_percentile(percentile) as f64 / 1e3;
        let answers = tally.latencies.len() as f64;
        Self {
            part: "",
            trial: 0,
            shape: "",
            mode: "",
            target: "",
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

    /// The same, with its place in the run.
    #[must_use]
    pub fn at(
        self,
        (part, trial): (&'static str, usize),
        (shape, mode, target): (&'static str, &'static str, &'static str),
        (in_flight, rate): (usize, Option<f64>),
    ) -> Self {
        Self { part, trial, shape, mode, target, in_flight, rate, ..self }
    }

    fn load(&self) -> String {
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

/// The report.
#[derive(Debug)]
pub struct Report {
    /// In Markdown.
    pub text: String,
    /// Whether all bars are met and no answer failed.
    pub met: bool,
}

/// The median, 0 of nothing.
#[must_use]
pub fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match (values.len() % 2, middle.checked_sub(1).and_then(|low| values.get(low))) {
        (0, Some(low)) => values.get(middle).map_or(*low, |high| f64::midpoint(*low, *high)),
        _ => values.get(middle).copied().unwrap_or_default(),
    }
}

/// Medians over the trials: a row for each kind of question and load, the echo beside the index.
#[must_use]
pub fn report(records: &[Record]) -> Report {
    let mut text = String::new();
    let trials = records.iter().map(|record| record.trial + 1).max().unwrap_or_default();
    let failures: u64 = records.iter().map(|record| record.failures).sum();
    let bars = bars::bars(records);
    // Writing to a string does not fail.
    let _written = table(&mut text, records, trials);
    let _written = bar_table(&mut text, &bars);
    let _written = writeln!(text, "\nWrong answers and errors: {failures}.");
    Report { text, met: failures == 0 && bars.iter().all(Bar::met) }
}

type Key<'a> = (&'a str, &'a str, &'a str, bool, usize);

fn table(text: &mut String, records: &[Record], trials: usize) -> fmt::Result {
    let mut rows: BTreeMap<Key<'_>, Vec<&Record>> = BTreeMap::new();
    for record in records {
        let key = (record.part, record.shape, record.mode, record.rate.is_some(), record.in_flight);
        rows.entry(key).or_default().push(record);
    }
    writeln!(text, "Medians of {trials} trials; index / echo; latencies in microseconds.\n")?;
    writeln!(
        text,
        "| part | question | call | in flight | requests/s | p50 | p99 | p99.9 | server CPU µs |"
    )?;
    writeln!(text, "| --- | --- | --- | --- | --- | --- | --- | --- | --- |")?;
    for ((part, shape, mode, ..), row) in rows {
        let of = |target: &str, value: fn(&Record) -> f64| {
            median(row.iter().filter(|record| record.target == target).map(|record| value(record)))
        };
        let pair = |value: fn(&Record) -> f64, digits: usize| {
            let index = of("index", value);
            if row.iter().all(|record| record.target == "index") {
                return format!("{index:.digits$}");
            }
            format!("{index:.digits$} / {:.digits$}", of("echo", value))
        };
        let load = row.first().map(|record| record.load()).unwrap_or_default();
        writeln!(
            text,
            "| {part} | {shape} | {mode} | {load} | {} | {} | {} | {} | {} |",
            pair(|record| record.requests_per_second, 0),
            pair(|record| record.p50_us, 0),
            pair(|record| record.p99_us, 0),
            pair(|record| record.p999_us, 0),
            pair(|record| record.server_cpu_us, 1),
        )?;
    }
    let beside = records.iter().filter_map(|record| record.ingested);
    let beside: Vec<Ingested> = beside.collect();
    if !beside.is_empty() {
        let blocks = median(beside.iter().map(|at| at.blocks_per_second));
        let cores = median(beside.iter().map(|at| at.publisher_cores));
        writeln!(
            text,
            "\nPart ingest: {blocks:.0} blocks/s applied, publishers used {cores:.2} cores."
        )?;
    }
    Ok(())
}

fn bar_table(text: &mut String, bars: &[Bar]) -> fmt::Result {
    writeln!(text, "\n| bar | wanted | measured | |\n| --- | --- | --- | --- |")?;
    for bar in bars {
        let verdict = if bar.met() { "met" } else { "**missed**" };
        let wanted = if bar.at_most { "≤" } else { "≥" };
        writeln!(
            text,
            "| {} | {wanted} {:.2} | {:.2} | {verdict} |",
            bar.name, bar.limit, bar.value
        )?;
    }
    Ok(())
}
