//! Records of measurements, and what is made of them.

use bench_figures::number::{median, millions, short, spread};
use bench_figures::{Bar, Incident, Limit, Part, Section, Side, Table, Verdict};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;

/// Blocks per second of processor time.
const BLOCKS_PER_CPU_SECOND_MIN: f64 = 1e6;
/// Latency that the agent adds, in microseconds.
const ADDED_P99_US_MAX: f64 = 2_000.0;
/// Resident bytes for each held block.
const BYTES_PER_BLOCK_MAX: f64 = 64.0;

/// One trial of one case.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Record {
    /// throughput, disk, latency, memory or limits.
    pub part: String,
    /// What was measured.
    pub case: String,
    /// Round.
    pub trial: usize,
    /// Figures by name; the unit is in the name.
    pub figures: BTreeMap<String, f64>,
}

impl Record {
    /// One without figures yet.
    #[must_use]
    pub fn new(part: &str, case: String) -> Self {
        Self { part: part.to_owned(), case, trial: 0, figures: BTreeMap::new() }
    }

    /// With one more.
    #[must_use]
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

/// The figures of a case: one of each trial.
fn values(records: &[Record], (part, case, name): (&str, &str, &str)) -> Vec<f64> {
    let those = records.iter().filter(|record| record.part == part && record.case == case);
    those.filter_map(|record| record.figures.get(name).copied()).collect()
}

/// The cases of a part, in the order in which they were measured first.
fn cases<'a>(records: &'a [Record], part: &str) -> Vec<&'a str> {
    let mut cases: Vec<&str> = Vec::new();
    for record in records.iter().filter(|record| record.part == part) {
        if !cases.contains(&&*record.case) {
            cases.push(&record.case);
        }
    }
    cases
}

/// A bar on the median of a figure of ours; `show` writes it.
fn bar(
    (id, what): (String, String),
    limit: Limit,
    values: &[f64],
    show: impl Fn(f64) -> String,
) -> Bar {
    let bar = Bar::new(id, what, limit, limit.text(&show));
    if values.is_empty() {
        return bar;
    }
    let middle = median(values);
    let spread = format!("{:.0} %", spread(values) * 100.0);
    let ours = Side { text: show(middle), spread, trials: values.len() };
    Bar { value: Some(middle), measured: show(middle), ours, ..bar }
}

/// What is to be reached, for each case that was measured.
#[must_use]
pub fn bars(records: &[Record]) -> Vec<Bar> {
    let mut bars = Vec::new();
    for case in cases(records, "throughput") {
        for (figure, what) in [("stored", "filling up"), ("replaced", "each block for another")] {
            let all = values(records, ("throughput", case, &format!("{figure}_per_cpu_second")));
            let id = format!("agent.throughput.{}.{figure}", case.replace([',', ' '], ""));
            let what = format!("agent, {what}, {case}: blocks per second of its processor time");
            let limit = Limit::AtLeast(BLOCKS_PER_CPU_SECOND_MIN);
            bars.push(bar((id, what), limit, &all, millions));
        }
    }
    for case in cases(records, "latency") {
        let all = values(records, ("latency", case, "added_p99_us"));
        let name = ("agent.latency.added".to_owned(), format!("agent, {case}: added latency, p99"));
        let limit = Limit::AtMost(ADDED_P99_US_MAX);
        bars.push(bar(name, limit, &all, |value| format!("{} µs", short(value))));
    }
    for case in cases(records, "memory") {
        let all = values(records, ("memory", case, "bytes_per_block"));
        let id = format!("agent.memory.{}", case.replace(' ', ""));
        let what = format!("agent, {case}: resident memory for each held block");
        let limit = Limit::AtMost(BYTES_PER_BLOCK_MAX);
        bars.push(bar((id, what), limit, &all, |value| format!("{} B", short(value))));
    }
    bars
}

/// What was measured, for the report of all benches.
#[must_use]
pub fn part(records: &[Record], incidents: Vec<Incident>) -> Part {
    const METHOD: &str = "An engine's ZMQ publisher (vLLM's frames), a real kvbm-agent process, and an index over gRPC: \
        the least one that acknowledges, or the real server. Blocks are stored and removed ones; rates are per second of the \
        agent's processor time, all its threads together. A latency begins when its batch was due; what is added is, batch by \
        batch, the time after a subscriber in the same run had it from the engine itself. Limits are measured in the bench's own \
        process: reading a frame includes its hashes.";
    let sections =
        ["throughput", "disk", "latency", "memory", "limits"].into_iter().filter_map(|part| {
            let table = table(records, part);
            let (title, note) = (part.to_owned(), String::new());
            (!table.is_empty()).then_some(Section { title, note, table })
        });
    Part {
        title: "The agent between an engine and an index".to_owned(),
        notes: vec![METHOD.to_owned()],
        bars: bars(records),
        sections: sections.collect(),
        plots: Vec::new(),
        incidents,
    }
}

/// Medians: a row for each case and figure.
fn table(records: &[Record], part: &str) -> Table {
    let mut table = Table::new(["case", "figure", "median", "spread", "trials"]);
    for case in cases(records, part) {
        let first = records.iter().find(|record| record.part == part && record.case == case);
        for name in first.iter().flat_map(|record| record.figures.keys()) {
            let all = values(records, (part, case, name));
            table.row([
                case.to_owned(),
                name.replace('_', " "),
                short(median(&all)),
                format!("{:.0} %", spread(&all) * 100.0),
                all.len().to_string(),
            ]);
        }
    }
    table
}

/// The report in Markdown, and whether all bars are met.
#[must_use]
pub fn text(records: &[Record]) -> (String, bool) {
    let part = part(records, Vec::new());
    let mut text = String::new();
    for note in &part.notes {
        text += &format!("{note}\n\n");
    }
    for section in &part.sections {
        text += &format!("### {}\n\n{}\n", section.title, section.table);
    }
    let mut bars = Table::new(["bar", "wanted", "measured", ""]);
    let mut met = true;
    for bar in part.bars {
        met &= bar.verdict() == Verdict::Met;
        let verdict = if bar.verdict() == Verdict::Met { "met" } else { "**missed**" };
        bars.row([bar.what, bar.wanted, bar.measured, verdict.to_owned()]);
    }
    text += &bars.to_string();
    (text, met)
}

#[cfg(test)]
mod tests {
    use super::*;

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
