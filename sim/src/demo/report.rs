//! Reports the results of a demo: text for people, JSON for programs.

use super::MODEL;
use super::drive::PassResult;
use super::fleet::Verdict;
use super::metrics::Sample;
use super::query::Query;
use super::route::Policy;
use crate::server::Addresses;
use anyhow::{Context, Result};
use comfy_table::presets::UTF8_FULL_CONDENSED;
use comfy_table::{CellAlignment, ContentArrangement, Table};
use kvasir_proto::pb;
use serde::Serialize;
use std::path::Path;
use std::time::Duration;

/// Width of a full bar of the chart, in characters.
const CHART_WIDTH: f64 = 50.0;
/// Width of all output, in characters: a terminal's default.
pub const WIDTH: u16 = 80;

/// Explanations of the words in the tables, one line each.
const LEGEND: &str = "\
hit rate: share of the prompts' tokens that their engines found in cache
p99: 99 of 100 answers came within this time, as the driver sees it, which
     shares this machine with the engines and the server
copies: times that blocks lie in an engine's memory: equal prompts that run
     at the same time make two of the same block";

/// All results of a demo.
#[derive(Debug, Serialize)]
pub struct Report {
    /// Seed of the workload.
    pub seed: u64,
    /// Engines per fleet.
    pub engines: usize,
    /// Tokens per block.
    pub block_size: usize,
    /// Physical blocks per engine.
    pub capacity_blocks: usize,
    /// Results of the passes.
    pub sections: Vec<Section>,
    /// Counters of GetStats at the end.
    pub counters: Vec<Counter>,
    /// Samples of `/metrics` at the end.
    pub metrics: Vec<Sample>,
    /// A query to try; none if no prompt distinguishes workers.
    pub query: Option<Query>,
}

/// Observations of the server before and after a pass.
#[derive(Debug)]
pub struct Observed {
    /// Sizes and counters of the index before the pass.
    pub before: pb::GetStatsResponse,
    /// Sizes and counters of the index after everything was applied.
    pub after: pb::GetStatsResponse,
    /// Time from the last answer until everything was applied.
    pub caught_up: Duration,
    /// Comparisons of engines with dumps.
    pub verdicts: Vec<Verdict>,
    /// Round-trip times of FindMatches without other load.
    pub idle_latencies: Vec<Duration>,
}

/// Results of one pass.
#[derive(Debug, Serialize)]
pub struct Section {
    policy: Policy,
    requests: u64,
    prompt_tokens: u64,
    hit_tokens: u64,
    hit_share: f64,
    elapsed_secs: f64,
    caught_up_secs: f64,
    find_matches: Option<Latency>,
    find_matches_idle: Option<Latency>,
    batches_per_sec: f64,
    block_events_per_sec: f64,
    index: IndexSize,
    workload: WorkloadSummary,
    verdicts: Vec<Verdict>,
}

/// Round-trip times of FindMatches, measured by the client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Latency {
    p50_micros: u64,
    p99_micros: u64,
}

/// Sizes of the demo's partition.
#[derive(Debug, Default, Clone, PartialEq, Eq, Serialize)]
struct IndexSize {
    workers: u64,
    blocks: u64,
    pairs: u64,
    parked: u64,
    bytes: u64,
}

/// Statistics of the workload.
#[derive(Debug, Clone, PartialEq, Serialize)]
struct WorkloadSummary {
    mean_prompt_tokens: f64,
    mean_answer_tokens: f64,
    mean_gap_secs: f64,
    reuse_share: f64,
}

/// One counter of GetStats.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Counter {
    unit: String,
    outcome: String,
    reason: String,
    count: u64,
}

// === impl Report ===

impl Report {
    /// True if every dump equalled its engine.
    #[must_use]
    pub fn is_verified(&self) -> bool {
        self.sections.iter().flat_map(|section| &section.verdicts).all(Verdict::is_equal)
    }

    /// Whether the index is exact, and the query to try. With `is_verbose`: also all tables and the chart.
    #[must_use]
    pub fn text(&self, server: Addresses, is_verbose: bool) -> String {
        let mut parts = Vec::new();
        if is_verbose || !self.is_verified() {
            parts.extend(self.sections.iter().map(Section::verdict_table));
        }
        if is_verbose {
            parts.extend(self.sections.first().map(|section| section.workload.text()));
            parts.push(format!("{}\n{LEGEND}", self.passes()));
            parts.push(self.chart());
            parts.push(format!(
                "Event counters since start (GetStats) that are not 0\n{}\n{}",
                self.counter_table(),
                self.sums()
            ));
            parts.push(format!(
                "Counters of http://{}/metrics that are not 0\n{}",
                server.http,
                self.metric_table()
            ));
        }
        parts.push(self.equality());
        parts.push(match &self.query {
            Some(query) => query.text(server.grpc),
            None => "No prompt of this run tells workers apart.".to_owned(),
        });
        parts.join("\n\n")
    }

    /// One line: whether the index equals the engines' caches.
    fn equality(&self) -> String {
        let verdicts = || self.sections.iter().flat_map(|section| &section.verdicts);
        let all = verdicts().count();
        let equal = verdicts().filter(|verdict| verdict.is_equal()).count();
        let blocks = grouped(verdicts().map(|verdict| verdict.blocks).sum());
        let word = if equal == all { "equals" } else { "DIFFERS from" };
        format!("The index {word} the engines' caches: {equal} of {all} equal, {blocks} blocks.")
    }

    /// Writes everything to a file as JSON.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn write(&self, path: &Path) -> Result<()> {
        let json = serde_json::to_vec_pretty(self).context("write the report as JSON")?;
        std::fs::write(path, json).with_context(|| format!("write {}", path.display()))
    }

    fn passes(&self) -> Table {
        let names = self.sections.iter().map(|section| section.policy.name().to_owned());
        let mut table = table(["".to_owned()].into_iter().chain(names));
        let mut row = |name: &str, value: &dyn Fn(&Section) -> String| {
            let values = self.sections.iter().map(value);
            table.add_row([name.to_owned()].into_iter().chain(values));
        };
        row("requests", &|section| grouped(section.requests));
        row("prompt tokens", &|section| grouped(section.prompt_tokens));
        row("prompt tokens found in cache", &|section| grouped(section.hit_tokens));
        row("hit rate", &|section| percent(section.hit_share));
        row("FindMatches p50, under load", &|section| {
            micros(section.find_matches, |at| at.p50_micros)
        });
        row("FindMatches p99, under load", &|section| {
            micros(section.find_matches, |at| at.p99_micros)
        });
        row("FindMatches p50, one at a time", &|section| {
            micros(section.find_matches_idle, |at| at.p50_micros)
        });
        row("FindMatches p99, one at a time", &|section| {
            micros(section.find_matches_idle, |at| at.p99_micros)
        });
        row("time", &|section| format!("{:.1} s", section.elapsed_secs));
        row("requests/s", &|section| rate(section.requests as f64 / section.elapsed_secs));
        row("block events/s", &|section| rate(section.block_events_per_sec));
        row("batches/s", &|section| rate(section.batches_per_sec));
        row("exact after the last answer", &|section| format!("{:.2} s", section.caught_up_secs));
        row("workers in the index", &|section| grouped(section.index.workers));
        row("distinct blocks", &|section| grouped(section.index.blocks));
        row("(worker, block) pairs", &|section| grouped(section.index.pairs));
        row("parked names", &|section| grouped(section.index.parked));
        row("index size", &|section| section.index.size());
        row("dumps equal to their engines", &|section| {
            let equal = section.verdicts.iter().filter(|verdict| verdict.is_equal()).count();
            format!("{equal} of {}", section.verdicts.len())
        });
        table
    }

    fn chart(&self) -> String {
        let mut lines = vec!["Hit rate".to_owned()];
        lines.extend(self.sections.iter().map(|at| bar(at.policy.name(), at.hit_share)));
        if let Some(section) = self.sections.first() {
            lines.push(bar("one cache *", section.workload.reuse_share));
            lines.push("* of prompts alone, infinite, in blocks of 512 tokens:".to_owned());
            lines.push("  finer blocks, and answers that are cached too, can beat it".to_owned());
        }
        lines.join("\n")
    }

    fn counter_table(&self) -> Table {
        let mut table = table(["unit", "outcome", "reason", "count"].map(str::to_owned));
        for counter in self.counters.iter().filter(|counter| counter.count > 0) {
            let Counter { unit, outcome, reason, count } = counter;
            table.add_row([unit.clone(), outcome.clone(), reason.clone(), grouped(*count)]);
        }
        table
    }

    /// Whether every received operation and batch has exactly one outcome.
    fn sums(&self) -> String {
        let line = |unit| {
            let of_unit = self.counters.iter().filter(|counter| counter.unit == unit);
            let (received, outcomes): (Vec<_>, Vec<_>) =
                of_unit.partition(|counter| counter.outcome == "received");
            let sum = |counters: &[&Counter]| counters.iter().map(|c| c.count).sum::<u64>();
            let received = sum(&received);
            let outcomes = sum(&outcomes);
            let sign = if received == outcomes { "=" } else { "≠" };
            format!("{unit}: received {received} {sign} {outcomes}, the sum of all outcomes")
        };
        ["block", "batch"].map(line).join("\n")
    }

    fn metric_table(&self) -> Table {
        let mut table = table(["metric", "labels", "value"].map(str::to_owned));
        let counters = self.metrics.iter().filter(|sample| sample.name.ends_with("_total"));
        for sample in counters.filter(|sample| sample.value != 0.0) {
            let value = grouped(sample.value as u64);
            table.add_row([sample.name.clone(), sample.labels.replace("\",", "\", "), value]);
        }
        table
    }
}

// === impl Section ===

impl Section {
    /// Assembles the results of a pass.
    #[must_use]
    pub fn new(policy: Policy, pass: &PassResult, observed: Observed) -> Self {
        let seconds = (pass.elapsed + observed.caught_up).as_secs_f64();
        let per_sec = |unit| {
            let received = received(&observed.after, unit) - received(&observed.before, unit);
            received as f64 / seconds
        };
        Self {
            policy,
            requests: pass.requests,
            prompt_tokens: pass.prompt_tokens,
            hit_tokens: pass.hit_tokens,
            hit_share: pass.hit_share(),
            elapsed_secs: pass.elapsed.as_secs_f64(),
            caught_up_secs: observed.caught_up.as_secs_f64(),
            find_matches: Latency::of(&pass.latencies),
            find_matches_idle: Latency::of(&observed.idle_latencies),
            batches_per_sec: per_sec("batch"),
            block_events_per_sec: per_sec("block"),
            index: IndexSize::of(&observed.after),
            workload: WorkloadSummary {
                mean_prompt_tokens: pass.profile.mean_prompt_tokens(),
                mean_answer_tokens: pass.profile.mean_answer_tokens(),
                mean_gap_secs: pass.profile.mean_gap_secs(),
                reuse_share: pass.profile.reuse_share(),
            },
            verdicts: observed.verdicts,
        }
    }

    /// The comparison of the pass's engines with the index.
    fn verdict_table(&self) -> String {
        let columns = ["worker", "batches", "blocks", "copies", "missing", "phantom", "miscounted"];
        let mut table = table(columns.into_iter().chain([""]).map(str::to_owned));
        for verdict in &self.verdicts {
            let Verdict { blocks, copies, missing, phantom, miscounted, .. } = *verdict;
            let batches = verdict.last_sequence.map_or(0, |last| last + 1);
            let numbers = [batches, blocks, copies, missing, phantom, miscounted].map(grouped);
            let word = if verdict.is_equal() { "equal" } else { "WRONG" };
            let row = [verdict.worker_id.clone()].into_iter().chain(numbers);
            table.add_row(row.chain([word.to_owned()]));
        }
        format!("{}: the index compared with the engines\n{table}", self.policy.name())
    }
}

// === impl Latency ===

impl Latency {
    /// Median and 99th percentile; `None` without latencies.
    #[must_use]
    pub fn of(latencies: &[Duration]) -> Option<Self> {
        let mut sorted = latencies.to_vec();
        sorted.sort_unstable();
        let last = sorted.len().checked_sub(1)?;
        let at = |percent: usize| sorted[(last * percent).div_ceil(100)].as_micros() as u64;
        Some(Self { p50_micros: at(50), p99_micros: at(99) })
    }
}

// === impl IndexSize ===

impl IndexSize {
    fn of(stats: &pb::GetStatsResponse) -> Self {
        let demo = stats.partitions.iter().find(|partition| partition.model == MODEL);
        demo.map_or_else(Self::default, |partition| Self {
            workers: partition.workers,
            blocks: partition.blocks,
            pairs: partition.pairs,
            parked: partition.parked,
            bytes: partition.index_bytes,
        })
    }

    fn size(&self) -> String {
        let per_pair = self.bytes as f64 / self.pairs.max(1) as f64;
        format!("{:.1} MiB, {per_pair:.0} B/pair", self.bytes as f64 / (1 << 20) as f64)
    }
}

// === impl WorkloadSummary ===

impl WorkloadSummary {
    fn text(&self) -> String {
        format!(
            "Workload, on average: prompt {:.0} tokens, answer {:.0} tokens, gap {:.0} ms",
            self.mean_prompt_tokens,
            self.mean_answer_tokens,
            1_000.0 * self.mean_gap_secs,
        )
    }
}

// === impl Counter ===

impl From<&pb::Counter> for Counter {
    fn from(counter: &pb::Counter) -> Self {
        Self {
            unit: counter.unit.clone(),
            outcome: counter.outcome.clone(),
            reason: counter.reason.clone(),
            count: counter.count,
        }
    }
}

fn received(stats: &pb::GetStatsResponse, unit: &str) -> u64 {
    let of_unit = stats.counters.iter().filter(|counter| counter.unit == unit);
    of_unit.filter(|counter| counter.outcome == "received").map(|counter| counter.count).sum()
}

/// A table of numbers, except for its first column. Long cells are wrapped.
fn table(columns: impl IntoIterator<Item = String>) -> Table {
    let mut table = Table::new();
    table.load_style(UTF8_FULL_CONDENSED).set_header(columns);
    table.set_content_arrangement(ContentArrangement::Dynamic).set_width(WIDTH);
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

fn bar(name: &str, share: f64) -> String {
    let bar = "█".repeat((CHART_WIDTH * share).round() as usize);
    format!("{name:>13} {bar} {}", percent(share))
}

fn percent(share: f64) -> String {
    format!("{:.1} %", 100.0 * share)
}

fn rate(per_sec: f64) -> String {
    grouped(per_sec.round() as u64)
}

fn micros(latency: Option<Latency>, of: fn(Latency) -> u64) -> String {
    latency.map_or_else(|| "-".to_owned(), |latency| format!("{} µs", grouped(of(latency))))
}

/// Formats a number with commas between thousands.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_grouped_by_thousands() {
        let grouped = [0, 999, 1_000, 1_234_567].map(grouped);
        assert_eq!(grouped, ["0", "999", "1,000", "1,234,567"]);
    }

    #[test]
    fn percentiles_are_those_of_the_sorted_list() {
        let micros = |range: std::ops::RangeInclusive<u64>| {
            range.rev().map(Duration::from_micros).collect::<Vec<_>>()
        };
        let latency = |p50_micros, p99_micros| Some(Latency { p50_micros, p99_micros });
        assert_eq!(Latency::of(&micros(1..=101)), latency(51, 100));
        assert_eq!(Latency::of(&micros(7..=7)), latency(7, 7));
        assert_eq!(Latency::of(&[]), None);
    }
}
