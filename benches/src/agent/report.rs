//! Records of measurements, and the report made from them.

use super::way::To;
use bench_figures::number::{millions, short};
use bench_figures::{Bar, Figure, Incident, Limit, Part, Table};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;

/// Target: minimum blocks per second of processor time.
const BLOCKS_PER_CPU_SECOND_MIN: f64 = 1e6;
/// Target: maximum latency that the agent adds, in microseconds.
const ADDED_P99_US_MAX: f64 = 2_000.0;
/// Target: maximum time from an engine's batch to the first answer that includes it, in microseconds: without an agent,
/// and through one.
const FRESH_P99_US_MAX: [f64; 2] = [2_000.0, 4_000.0];
/// Target: maximum resident bytes per held block.
const BYTES_PER_BLOCK_MAX: f64 = 64.0;

/// One trial of one case.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Record {
    /// One of throughput, disk, latency, freshness, memory, limits.
    pub part: String,
    /// Name of the case.
    pub case: String,
    /// Number of the round.
    pub trial: usize,
    /// Figures by name; the unit is in the name.
    pub figures: BTreeMap<String, f64>,
}

impl Record {
    /// Creates a record without figures.
    pub fn new(part: &str, case: String) -> Self {
        Self { part: part.to_owned(), case, trial: 0, figures: BTreeMap::new() }
    }

    /// Adds a figure.
    pub fn with(mut self, name: &str, value: f64) -> Self {
        self.figures.insert(name.to_owned(), value);
        self
    }
}

impl fmt::Display for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({}), trial {}:", self.part, self.case, self.trial)?;
        let mut figures = self.figures.iter();
        figures.try_for_each(|(name, value)| write!(f, " {name} {}", short(*value)))
    }
}

/// Statistics of a case's figure over all trials.
fn figure(records: &[Record], part: &str, case: &str, name: &str) -> Option<Figure> {
    let those = records.iter().filter(|record| record.part == part && record.case == case);
    Figure::of(those.filter_map(|record| record.figures.get(name).copied()))
}

/// Cases of a part, in the order of their first measurement.
fn cases<'a>(records: &'a [Record], part: &str) -> Vec<&'a str> {
    let mut cases: Vec<&str> = Vec::new();
    for record in records.iter().filter(|record| record.part == part) {
        if !cases.contains(&&*record.case) {
            cases.push(&record.case);
        }
    }
    cases
}

/// A target for the median of a figure; `show` formats it.
fn bar(
    (id, what): (String, String),
    limit: Limit,
    figure: Option<Figure>,
    show: impl Fn(f64) -> String,
) -> Bar {
    Bar::new(id, what, limit, limit.text(&show)).with_figure(figure, show)
}

/// Targets for each measured case.
pub fn bars(records: &[Record]) -> Vec<Bar> {
    let mut bars = Vec::new();
    for case in cases(records, "throughput") {
        for (name, what) in [("stored", "filling up"), ("replaced", "each block for another")] {
            let all = figure(records, "throughput", case, &format!("{name}_per_cpu_second"));
            let id = format!("agent.throughput.{}.{name}", case.replace([',', ' '], ""));
            let what = format!("agent, {what}, {case}: blocks per second of its processor time");
            let limit = Limit::AtLeast(BLOCKS_PER_CPU_SECOND_MIN);
            bars.push(bar((id, what), limit, all, millions));
        }
    }
    for case in cases(records, "latency") {
        let all = figure(records, "latency", case, "added_p99_us");
        let name = ("agent.latency.added".to_owned(), format!("agent, {case}: added latency, p99"));
        let limit = Limit::AtMost(ADDED_P99_US_MAX);
        bars.push(bar(name, limit, all, |value| format!("{} µs", short(value))));
    }
    for case in cases(records, "freshness") {
        // If the sender saturated the machine, the times are the sender's.
        let is_held = figure(records, "freshness", case, "is_held");
        if is_held.is_none_or(|held| held.median < 1.0) {
            continue;
        }
        let [alone, through_agent] = FRESH_P99_US_MAX;
        let is_alone = case.starts_with(To::ServerAlone.name());
        let limit = Limit::AtMost(if is_alone { alone } else { through_agent });
        for change in ["stored", "removed"] {
            let all = figure(records, "freshness", case, &format!("{change}_p99_us"));
            let id = format!("agent.freshness.{}.{change}", case.replace([',', ' '], ""));
            let what =
                format!("{case}: from a batch to the first answer with the {change} block, p99");
            bars.push(bar((id, what), limit, all, |value| format!("{} µs", short(value))));
        }
    }
    for case in cases(records, "memory") {
        let all = figure(records, "memory", case, "bytes_per_block");
        let id = format!("agent.memory.{}", case.replace(' ', ""));
        let what = format!("agent, {case}: resident memory for each held block");
        let limit = Limit::AtMost(BYTES_PER_BLOCK_MAX);
        bars.push(bar((id, what), limit, all, |value| format!("{} B", short(value))));
    }
    bars
}

/// The results, for the report of all benches.
pub fn part(records: &[Record], incidents: Vec<Incident>) -> Part {
    const METHOD: &str = "An engine's ZMQ publisher (vLLM's frames), a real kvbm-agent process, and an index over gRPC: \
        the least one that acknowledges, or the real server. Blocks are stored and removed ones; rates are per second of the \
        agent's processor time, all its threads together. A latency begins when its batch was due; what is added is, batch by \
        batch, the time after a subscriber in the same run had it from the engine itself. Freshness is the time from the sending of a batch with \
        one block to the first answer of the index that shows it, while others are stored and removed; also where the server reads the engine itself, and where \
        the engine publishes over gRPC, without an agent. A probe follows the one before it, so a stall counts once. Limits are measured in the bench's own \
        process: reading a frame includes its hashes.";
    let title = "The agent between an engine and an index".to_owned();
    let notes = vec![METHOD.to_owned()];
    let bars = bars(records);
    let mut part = Part { title, notes, bars, incidents, ..Part::default() };
    for name in ["throughput", "disk", "latency", "freshness", "memory", "limits"] {
        part.add(name, "", table(records, name));
    }
    part
}

/// Medians: one row per case and figure.
fn table(records: &[Record], part: &str) -> Table {
    let mut table = Table::new(["case", "figure", "median", "spread", "trials"]);
    for case in cases(records, part) {
        let first = records.iter().find(|record| record.part == part && record.case == case);
        for name in first.iter().flat_map(|record| record.figures.keys()) {
            let Some(all) = figure(records, part, case, name) else { continue };
            let side = all.side(short);
            let trials = all.trials.to_string();
            table.row([case.to_owned(), name.replace('_', " "), side.text, side.spread, trials]);
        }
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use bench_figures::Verdict;

    #[test]
    fn a_bar_is_met_by_the_median() {
        let record =
            |value| Record::new("memory", "1000 held".to_owned()).with("bytes_per_block", value);
        let verdict = |values: &[f64]| {
            let records: Vec<Record> = values.iter().copied().map(record).collect();
            let bars = bars(&records);
            assert_eq!(bars.len(), 1);
            bars[0].verdict()
        };
        assert_eq!(verdict(&[70.0, 64.0, 50.0]), Verdict::Met);
        assert_eq!(verdict(&[70.0, 64.1, 50.0]), Verdict::Missed);
        assert!(bars(&[]).is_empty());
    }
}
