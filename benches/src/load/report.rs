//! Records of measurements, and the report made of them.

use super::closed::Tally;
use super::{bars, plots};
use bench_figures::number::median;
use bench_figures::{Incident, Part, Section, Table, Verdict};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

/// Percentiles that a record keeps, for curves.
const PERCENTILES: [f64; 13] =
    [1.0, 5.0, 10.0, 25.0, 50.0, 75.0, 90.0, 95.0, 98.0, 99.0, 99.5, 99.9, 100.0];

/// Events beside a measurement.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct Ingested {
    /// Block operations that the publishers are to send.
    pub asked_per_second: u64,
    /// Block operations applied.
    pub blocks_per_second: f64,
    /// Cores that the publishers' process used.
    pub publisher_cores: f64,
}

/// One measurement of one server.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Record {
    /// Part of the run.
    pub part: String,
    /// Round.
    pub trial: usize,
    /// Kind of question.
    pub shape: String,
    /// unary or stream.
    pub mode: String,
    /// index or echo.
    pub target: String,
    /// Questions in flight of a closed loop, 0 in an open one.
    pub in_flight: usize,
    /// Questions a second of an open loop.
    pub rate: Option<f64>,
    /// Bytes of a question.
    pub question_bytes: usize,
    /// Bytes of its answer.
    pub answer_bytes: usize,
    /// Answers that came in time.
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

    /// The same, with its place in the run.
    #[must_use]
    pub fn at(
        self,
        (part, trial): (&str, usize),
        (shape, mode, target): (&str, &str, &str),
        (in_flight, rate): (usize, Option<f64>),
    ) -> Self {
        let [part, shape, mode, target] = [part, shape, mode, target].map(str::to_owned);
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

/// What was measured, for the report of all benches.
#[must_use]
pub fn part(records: &[Record], incidents: Vec<Incident>) -> Part {
    const TITLE: &str = "FindMatches end to end, beside a bare echo";
    const METHOD: &str = "The real server and, as a process of its own, plain tonic that echoes \
        messages of the same sizes: index / echo, medians, latencies in microseconds. Closed loops \
        keep some questions in flight; open ones ask at a constant rate: 30 % of what the index \
        reaches with 64 in flight, or (offered) shares of each server's own capacity. A latency of an \
        open loop begins when its question was due.";
    let mut notes = vec![METHOD.to_owned()];
    notes.extend(beside(records));
    let table = table(records);
    let note = String::new();
    let title = "Requests".to_owned();
    let sections = if table.is_empty() { vec![] } else { vec![Section { title, note, table }] };
    Part {
        title: TITLE.to_owned(),
        notes,
        bars: bars::bars(records),
        sections,
        plots: plots::all(records),
        incidents,
    }
}

/// Medians over the trials: a row for each kind of question and load, the echo beside the index.
#[must_use]
pub fn report(records: &[Record]) -> Report {
    let part = part(records, Vec::new());
    let mut text = String::new();
    for note in &part.notes {
        text += &format!("{note}\n\n");
    }
    text += &table(records).to_string();
    let mut bars = Table::new(["bar", "wanted", "measured", ""]);
    let mut met = true;
    for bar in part.bars {
        let verdict = match bar.verdict() {
            Verdict::Met => "met",
            Verdict::Missed => "**missed**",
            Verdict::NotMeasured => continue,
        };
        met &= bar.verdict() == Verdict::Met;
        bars.row([bar.what, bar.wanted, bar.measured, verdict.to_owned()]);
    }
    text += &format!("\n{bars}");
    Report { text, met }
}

/// Part, shape, mode, in flight, share of the capacity in thousandths.
type Key<'a> = (&'a str, &'a str, &'a str, usize, u64);

fn table(records: &[Record]) -> Table {
    let mut rows: BTreeMap<Key<'_>, Vec<&Record>> = BTreeMap::new();
    for record in records.iter().filter(|record| record.part != "offered") {
        let open = u64::from(record.rate.is_some());
        let key = (&*record.part, &*record.shape, &*record.mode, record.in_flight, open);
        rows.entry(key).or_default().push(record);
    }
    let heads = ["part", "question", "call", "in flight", "requests/s"];
    let heads = heads.into_iter().chain(["p50", "p99", "p99.9", "server CPU µs", "trials"]);
    let mut table = Table::new(heads);
    for ((part, shape, mode, ..), row) in rows {
        let of = |target: &str, value: fn(&Record) -> f64| {
            let values = row.iter().filter(|record| record.target == target);
            let values: Vec<f64> = values.map(|record| value(record)).collect();
            (!values.is_empty()).then(|| median(&values))
        };
        let pair = |value: fn(&Record) -> f64, digits: usize| {
            let show = |value: Option<f64>| value.map(|value| format!("{value:.digits$}"));
            let targets = [show(of("index", value)), show(of("echo", value))];
            targets.into_iter().flatten().collect::<Vec<_>>().join(" / ")
        };
        let trials = row.iter().filter(|record| record.target == "index").count();
        table.row([
            part.to_owned(),
            shape.to_owned(),
            mode.to_owned(),
            row.first().map(|record| record.load()).unwrap_or_default(),
            pair(|record| record.requests_per_second, 0),
            pair(|record| record.p50_us, 0),
            pair(|record| record.p99_us, 0),
            pair(|record| record.p999_us, 0),
            pair(|record| record.server_cpu_us, 1),
            trials.to_string(),
        ]);
    }
    table
}

/// What was published beside the questions.
fn beside(records: &[Record]) -> Option<String> {
    let of = |value: fn(&Ingested) -> f64| {
        let values = records.iter().filter_map(|record| record.ingested.as_ref().map(value));
        let values: Vec<f64> = values.collect();
        (!values.is_empty()).then(|| median(&values))
    };
    let (blocks, cores) = of(|at| at.blocks_per_second).zip(of(|at| at.publisher_cores))?;
    Some(format!("Part ingest: {blocks:.0} blocks/s applied, publishers used {cores:.2} cores."))
}
