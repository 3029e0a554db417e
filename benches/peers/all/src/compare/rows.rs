//! The short set: its trials, and the results that are compared.

use crate::job::Job;
use crate::part::{hash, job};
use anyhow::Result;
use serde_json::Value;
use std::path::{Path, PathBuf};

/// Blocks stored and removed per second while the time from an event to its answer is measured.
const FRESHNESS_RATE: &str = "100000";

/// The programs of one build.
#[derive(Debug, Clone)]
pub(crate) struct Programs {
    pub(crate) indexer_server: PathBuf,
    pub(crate) peers_index: PathBuf,
}

impl Programs {
    /// Identifies the programs by a hash of their content.
    pub(crate) fn hash(&self) -> Result<String> {
        hash(&[self.indexer_server.clone(), self.peers_index.clone()])
    }
}

/// The client of both builds' servers.
#[derive(Debug)]
pub(crate) struct Driver {
    /// Path of this build's peers-service.
    pub(crate) program: PathBuf,
    /// Folder for the servers' logs.
    pub(crate) logs: PathBuf,
}

/// A trial that both builds run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The index, with each chain of blocks on one worker.
    OneHolder,
    /// The index, with each chain on 8 workers.
    ManyHolders,
    /// The index, with prompts that all 64 workers have.
    SharedPrompt,
    /// A server that follows 64 engines.
    Server,
}

impl Kind {
    pub(crate) const ALL: [Self; 4] =
        [Self::OneHolder, Self::ManyHolders, Self::SharedPrompt, Self::Server];

    const fn name(self) -> &'static str {
        match self {
            Self::OneHolder => "distinct",
            Self::ManyHolders => "shared8",
            Self::SharedPrompt => "prefix64",
            Self::Server => "server",
        }
    }

    /// A build's trial of this kind.
    pub(crate) fn job(self, build: &str, pair: usize, programs: &Programs, driver: &Driver) -> Job {
        let name = format!("{}.{pair}.{build}", self.name());
        let text = |path: &Path| path.display().to_string();
        let flags = |flags: &[(&str, String)]| -> Vec<String> {
            let flags = flags.iter().flat_map(|(flag, value)| [(*flag).to_owned(), value.clone()]);
            ["trial".to_owned()].into_iter().chain(flags).collect()
        };
        match self {
            Self::Server => {
                let arguments = flags(&[
                    ("--server", "kvasir".to_owned()),
                    ("--indexer-server", text(&programs.indexer_server)),
                    ("--logs", text(&driver.logs)),
                    ("--trial", pair.to_string()),
                    ("--rates", FRESHNESS_RATE.to_owned()),
                ]);
                job(name, driver.program.clone(), arguments, 17.0)
            }
            Self::OneHolder | Self::ManyHolders | Self::SharedPrompt => {
                let arguments = flags(&[
                    ("--index", "kvasir".to_owned()),
                    ("--workload", self.name().to_owned()),
                    ("--measure", "lookup,remove-tail".to_owned()),
                    ("--seed", pair.to_string()),
                ]);
                job(name, programs.peers_index.clone(), arguments, 3.0)
            }
        }
    }

    /// A result in the lines that a trial printed.
    fn figure(self, lines: &[Value], name: &str) -> Option<f64> {
        match self {
            Self::Server => {
                let line = lines.iter().find(|line| line["measure"] == name)?;
                line["value"].as_f64()
            }
            Self::OneHolder | Self::ManyHolders | Self::SharedPrompt => {
                lines.first()?["trial"]["figures"][name].as_f64()
            }
        }
    }
}

/// Direction in which a result is better.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Good {
    /// Lower is better: times and bytes.
    Low,
    /// Higher is better: rates.
    High,
}

/// A compared result.
#[derive(Debug)]
pub(crate) struct Row {
    pub(crate) title: &'static str,
    pub(crate) kind: Kind,
    figure: &'static str,
    good: Good,
}

impl Row {
    const fn low(title: &'static str, kind: Kind, figure: &'static str) -> Self {
        Self { title, kind, figure, good: Good::Low }
    }

    const fn high(title: &'static str, kind: Kind, figure: &'static str) -> Self {
        Self { title, kind, figure, good: Good::High }
    }

    /// The row's result in the lines that a trial printed; none if it is missing or not positive.
    pub(crate) fn figure(&self, lines: &[Value]) -> Option<f64> {
        self.kind.figure(lines, self.figure).filter(|&figure| figure > 0.0)
    }

    #[cfg(test)]
    pub(crate) const fn name(&self) -> &'static str {
        self.figure
    }

    /// Cost of the work in this build, as a multiple of its cost in the other one.
    pub(crate) fn cost_ratio(&self, this: f64, other: f64) -> f64 {
        match self.good {
            Good::Low => this / other,
            Good::High => other / this,
        }
    }
}

/// The rows, in order.
pub(crate) const ROWS: &[Row] = &[
    Row::high("store, one holder, blocks / CPU s", Kind::OneHolder, "store.cpu_rate"),
    Row::high("store, 8 holders, blocks / CPU s", Kind::ManyHolders, "store.cpu_rate"),
    Row::high("remove, one holder, blocks / CPU s", Kind::OneHolder, "remove.tail.cpu_rate"),
    Row::high("remove, 8 holders, blocks / CPU s", Kind::ManyHolders, "remove.tail.cpu_rate"),
    Row::low(
        "lookup of 256 blocks, one holder, CPU ns",
        Kind::OneHolder,
        "lookup.hit256.find.cpu_ns",
    ),
    Row::low(
        "lookup of 256 blocks, 8 holders, CPU ns",
        Kind::ManyHolders,
        "lookup.hit256.find.cpu_ns",
    ),
    Row::low(
        "lookup of 256 blocks, 64 holders, CPU ns",
        Kind::SharedPrompt,
        "lookup.prompt.find.cpu_ns",
    ),
    Row::low("memory, one holder, bytes / block", Kind::OneHolder, "memory.full"),
    Row::low("memory, 8 holders, bytes / block", Kind::ManyHolders, "memory.full"),
    Row::low("memory of a server, bytes / block", Kind::Server, "resident_bytes_per_pair"),
    Row::high("ingest by a server, blocks / CPU s", Kind::Server, "ingest_pairs_per_cpu_second"),
    Row::low("query of 256 hashes, server CPU µs", Kind::Server, "query_hashes_256_cpu_us"),
    Row::low("query of 256 hashes, p50 µs", Kind::Server, "query_hashes_256_p50_us"),
    Row::low("query of 256 hashes, p99 µs", Kind::Server, "query_hashes_256_p99_us"),
    Row::low(
        "query of 256 hashes in a stream, server CPU µs",
        Kind::Server,
        "query_hashes_stream_256_cpu_us",
    ),
    Row::low("event to answer, stored, p50 µs", Kind::Server, "freshness_100000_stored_p50_us"),
    Row::low("event to answer, stored, p99 µs", Kind::Server, "freshness_100000_stored_p99_us"),
    Row::low("event to answer, removed, p50 µs", Kind::Server, "freshness_100000_removed_p50_us"),
    Row::low("event to answer, removed, p99 µs", Kind::Server, "freshness_100000_removed_p99_us"),
];

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn figures_are_found_in_what_trials_print() {
        let index = [json!({"trial": {"figures": {"store.cpu_rate": 2e6}}})];
        assert_eq!(Kind::OneHolder.figure(&index, "store.cpu_rate"), Some(2e6));
        assert_eq!(Kind::OneHolder.figure(&index, "memory.full"), None);
        let server = [
            json!({"subject": "kvasir", "trial": 1, "measure": "a", "value": 1.0}),
            json!({"subject": "kvasir", "trial": 1, "measure": "b", "value": 2.0}),
        ];
        assert_eq!(Kind::Server.figure(&server, "b"), Some(2.0));
        assert_eq!(Kind::Server.figure(&[], "b"), None);
    }

    #[test]
    fn a_ratio_above_one_is_worse_for_rates_and_times() {
        let rate = Row::high("rate", Kind::OneHolder, "rate");
        assert_eq!(rate.cost_ratio(50.0, 100.0), 2.0);
        let time = Row::low("time", Kind::OneHolder, "time");
        assert_eq!(time.cost_ratio(100.0, 50.0), 2.0);
    }
}
