//! Figures of all trials, by index, workload and measure.

use crate::plan::MANY_WORKERS;
use crate::trial::Record;
use crate::workload::Kind;
use bench_figures::Figure;
use std::collections::BTreeMap;

pub(crate) const OURS: &str = "kvasir";
pub(crate) const CHAIN: &str = "chain";
/// Kvasir's index and its peers.
pub(crate) const INDEXES: [&str; 4] = [OURS, CHAIN, "crtc", "positional"];
/// Kvasir's index with one shard and with more.
pub(crate) const SHARDED: [&str; 3] = [OURS, "kvasir-2", "kvasir-4"];
/// Number of workers of the ordinary fleet.
const WORKERS: usize = 64;

/// Query functions of an index.
pub(crate) fn calls(index: &str) -> &'static [&'static str] {
    match index {
        CHAIN => &["find_matches", "score_into"],
        ours if SHARDED.contains(&ours) => &["find"],
        _ => &["find_matches"],
    }
}

/// A workload of a certain size.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct At {
    pub(crate) kind: Kind,
    pub(crate) workers: usize,
    pub(crate) pairs: usize,
}

impl At {
    pub(crate) fn new(kind: Kind, pairs: usize) -> Self {
        Self { kind, workers: WORKERS, pairs }
    }

    pub(crate) fn many(kind: Kind, pairs: usize) -> Self {
        Self { kind, workers: MANY_WORKERS, pairs }
    }
}

/// All figures of a run.
#[derive(Debug, Default)]
pub(crate) struct Figures {
    figures: BTreeMap<(At, String, String), Vec<f64>>,
}

impl Figures {
    pub(crate) fn new(records: &[Record]) -> Self {
        let mut all = Self::default();
        for record in records {
            let Record::Trial(line) = record else {
                continue;
            };
            let at = At { kind: line.workload, workers: line.workers, pairs: line.pairs };
            for (name, &value) in &line.figures {
                let key = (at, line.index.clone(), name.clone());
                all.figures.entry(key).or_default().push(value);
            }
        }
        all
    }

    /// One figure of one index, if it was measured.
    pub(crate) fn get(&self, at: At, index: &str, name: &str) -> Option<Figure> {
        let values = self.figures.get(&(at, index.to_owned(), name.to_owned()))?;
        Figure::of(values.iter().copied())
    }
}
