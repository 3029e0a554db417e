//! What a run writes as it goes: the raw file, of which the report is made.

use crate::line::Line;
use anyhow::{Context, Result};
use peers_report::Machine;
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;

/// Name of the raw file.
pub(crate) const RAW: &str = "raw.jsonl";

/// One line of the raw file.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Record {
    /// The first.
    Run(Head),
    /// A trial.
    Trial(Line),
    /// A trial that ended badly: a wrong size or answer.
    Failed { index: String, group: String, reason: String },
    /// A trial for which there was no memory.
    Skipped { index: String, group: String },
}

/// What was run, and on what.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Head {
    pub(crate) processor: String,
    pub(crate) processors: usize,
    pub(crate) memory_gib: u64,
    pub(crate) load: String,
    pub(crate) date: String,
    pub(crate) allocator: String,
    pub(crate) trials: usize,
    pub(crate) quick: bool,
    pub(crate) pairs: usize,
    pub(crate) sweep: Vec<usize>,
}

impl Head {
    pub(crate) fn new(machine: Machine, date: Option<String>) -> Self {
        let allocator = match cfg!(feature = "mimalloc") {
            true => "mimalloc, collected",
            false => "the system's, trimmed",
        };
        Self {
            processor: machine.processor,
            processors: machine.processors,
            memory_gib: machine.memory_gib,
            load: machine.load,
            date: date.unwrap_or(machine.date),
            allocator: allocator.to_owned(),
            trials: 0,
            quick: false,
            pairs: 0,
            sweep: Vec::new(),
        }
    }
}

/// Reads the raw file of a folder.
pub(crate) fn read(folder: &Path) -> Result<Vec<Record>> {
    let path = folder.join(RAW);
    let file = File::open(&path).with_context(|| format!("open {}", path.display()))?;
    let mut records = Vec::new();
    for (line, number) in BufReader::new(file).lines().zip(1..) {
        let line = line.with_context(|| format!("read {}", path.display()))?;
        let record = serde_json::from_str(&line);
        records.push(record.with_context(|| format!("{}, line {number}", path.display()))?);
    }
    Ok(records)
}
