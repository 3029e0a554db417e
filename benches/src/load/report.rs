//! Creates the report from the records.

use super::bars::bars;
use super::plots;
use super::record::{self, Ingested, Record, middle};
use bench_figures::number::median;
use bench_figures::{Incident, Part, Table};
use std::collections::BTreeMap;

/// The results, for the report of all benches.
pub fn part(records: &[Record], incidents: Vec<Incident>) -> Part {
    const TITLE: &str = "FindMatches end to end, beside a bare echo";
    const METHOD: &str = "The real server and, as a process of its own, plain tonic that echoes \
        messages of the same sizes: index / echo, medians, latencies in microseconds. Closed loops \
        keep some questions in flight; open ones ask at a constant rate: 30 % of what the index \
        reaches with 64 in flight, or (offered) shares of each server's own capacity. A latency of an \
        open loop begins when its question was due.";
    const OFFERED: &str = "Questions of the first kind at growing rates, up to 120 % of what each server \
        reaches with 64 in flight.";
    let mut notes = vec![METHOD.to_owned()];
    notes.extend(ingested(records));
    let title = TITLE.to_owned();
    let bars = bars(records);
    let mut part = Part { title, notes, bars, incidents, ..Part::default() };
    part.add("Requests", "", requests(records));
    part.add("Offered", OFFERED, offered(records));
    plots::all(records).into_iter().for_each(|plot| part.add_plot(plot));
    part
}

/// Part, shape, mode, queries in flight, fraction of the capacity in thousandths.
type Key<'a> = (&'a str, &'a str, &'a str, usize, u64);

fn requests(records: &[Record]) -> Table {
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
            let there = row.iter().copied().filter(|record| record.target == target);
            let there: Vec<&Record> = there.collect();
            (!there.is_empty()).then(|| middle(&there, value))
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

/// Table of each server's answers at increasing load.
fn offered(records: &[Record]) -> Table {
    let mut table = Table::new(["call", "server", "asked/s", "answered/s", "p50 µs", "p99 µs"]);
    for ((mode, target, _), row) in record::offered(records) {
        let of = |value| format!("{:.0}", middle(&row, value));
        table.row([
            mode.to_owned(),
            target.to_owned(),
            of(|record| record.rate.unwrap_or_default()),
            of(|record| record.requests_per_second),
            of(|record| record.p50_us),
            of(|record| record.p99_us),
        ]);
    }
    table
}

/// Describes the events published while queries were measured.
fn ingested(records: &[Record]) -> Option<String> {
    let of = |value: fn(&Ingested) -> f64| {
        let values = records.iter().filter_map(|record| record.ingested.as_ref().map(value));
        let values: Vec<f64> = values.collect();
        (!values.is_empty()).then(|| median(&values))
    };
    let (blocks, cores) = of(|at| at.blocks_per_second).zip(of(|at| at.publisher_cores))?;
    Some(format!("Part ingest: {blocks:.0} blocks/s applied, publishers used {cores:.2} cores."))
}
