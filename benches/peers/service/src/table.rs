//! The report: medians beside each other, with what was to be reached.

use crate::{
    measure::Measurements,
    subject::{Dynamo, Kvasir, Subject},
};
use std::fmt::Write;

/// What ours must be, as a multiple of theirs.
#[derive(Debug, Clone, Copy)]
enum Bar {
    AtLeast(f64),
    AtMost(f64),
    None,
}

/// Rows: what it is called, the measure, what to divide by, decimals, the bar.
const ROWS: &[(&str, &str, f64, usize, Bar)] = &[
    ("ingest, M pairs / CPU s", "ingest_pairs_per_cpu_second", 1e6, 2, Bar::AtLeast(4.0)),
    ("ingest, M pairs / s", "ingest_pairs_per_second", 1e6, 2, Bar::None),
    ("memory, bytes / pair", "resident_bytes_per_pair", 1.0, 1, Bar::AtMost(0.6)),
    ("query 256 blocks by hash, CPU µs", "query_hashes_256_cpu_us", 1.0, 1, Bar::AtMost(0.15)),
    ("… p50 µs", "query_hashes_256_p50_us", 1.0, 0, Bar::None),
    ("… p99 µs", "query_hashes_256_p99_us", 1.0, 0, Bar::None),
    ("query 256 blocks by tokens, CPU µs", "query_tokens_256_cpu_us", 1.0, 1, Bar::None),
    ("… p50 µs", "query_tokens_256_p50_us", 1.0, 0, Bar::None),
    ("… p99 µs", "query_tokens_256_p99_us", 1.0, 0, Bar::None),
    ("query 64 blocks by hash, CPU µs", "query_hashes_64_cpu_us", 1.0, 1, Bar::None),
    ("query 512 blocks by hash, CPU µs", "query_hashes_512_cpu_us", 1.0, 1, Bar::None),
    ("query 64 blocks by tokens, CPU µs", "query_tokens_64_cpu_us", 1.0, 1, Bar::None),
    ("query 512 blocks by tokens, CPU µs", "query_tokens_512_cpu_us", 1.0, 1, Bar::None),
    ("dump of everything, s", "dump_seconds", 1.0, 2, Bar::AtMost(0.1)),
    ("… CPU s", "dump_cpu_seconds", 1.0, 2, Bar::None),
    ("… memory on top, MiB", "dump_peak_growth_bytes", 1_048_576.0, 1, Bar::None),
    ("… bytes / pair", "dump_bytes_per_pair", 1.0, 1, Bar::None),
];

/// Rows of ours on a stream, beside theirs with one request at a time: they have no stream.
const STREAM_ROWS: &[(&str, &str, &str, Bar)] = &[
    (
        "query 256 blocks by hash, stream of 16, CPU µs",
        "query_hashes_256_cpu_us",
        "query_hashes_stream_256_cpu_us",
        Bar::AtMost(0.15),
    ),
    (
        "query 256 blocks by tokens, stream of 16, CPU µs",
        "query_tokens_256_cpu_us",
        "query_tokens_stream_256_cpu_us",
        Bar::None,
    ),
];

impl Bar {
    fn judge(self, ratio: f64) -> String {
        let (bar, met) = match self {
            Self::AtLeast(least) => (format!("≥ {least}"), ratio >= least),
            Self::AtMost(most) => (format!("≤ {most}"), ratio <= most),
            Self::None => return "| ".to_owned(),
        };
        format!("{bar} | {}", if met { "met" } else { "**missed**" })
    }
}

/// The table in Markdown.
pub fn markdown(taken: &Measurements) -> String {
    let mut out = String::new();
    out.push_str("| measure | dynamo.indexer 1.6.1 | indexer-server | ratio | bar | |\n");
    out.push_str("| --- | ---: | ---: | ---: | --- | --- |\n");
    let mut row = |title: &str, measures: [&str; 2], unit: f64, decimals: usize, bar: Bar| {
        let theirs = taken.median(Dynamo::NAME, measures[0]);
        let ours = taken.median(Kvasir::NAME, measures[1]);
        let (Some(theirs), Some(ours)) = (theirs, ours) else { return };
        let ratio = ours / theirs;
        let (theirs, ours, judged) = (theirs / unit, ours / unit, bar.judge(ratio));
        // Writing to a string does not fail.
        let _ = writeln!(
            out,
            "| {title} | {theirs:.decimals$} | {ours:.decimals$} | {ratio:.3} | {judged} |"
        );
    };
    for (title, measure, unit, decimals, bar) in ROWS {
        row(title, [measure, measure], *unit, *decimals, *bar);
    }
    for (title, theirs, ours, bar) in STREAM_ROWS {
        row(title, [theirs, ours], 1.0, 1, *bar);
    }
    out
}
