//! The output of one trial: one line of JSON.

use crate::samples::Sorted;
use crate::workload::Kind;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Quantiles of latencies: their names in figures, and the fraction of samples.
pub(crate) const QUANTILES: [(&str, f64); 9] = [
    ("p1", 0.01),
    ("p10", 0.1),
    ("p25", 0.25),
    ("p50", 0.5),
    ("p75", 0.75),
    ("p90", 0.9),
    ("p95", 0.95),
    ("p99", 0.99),
    ("p999", 0.999),
];

/// The figures of one trial.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Line {
    pub(crate) index: String,
    pub(crate) workload: Kind,
    pub(crate) workers: usize,
    pub(crate) pairs: usize,
    pub(crate) seed: u64,
    /// Figures by name. A name states the measure, its object and the unit.
    pub(crate) figures: BTreeMap<String, f64>,
}

impl Line {
    pub(crate) fn set(&mut self, name: impl Into<String>, value: f64) {
        self.figures.insert(name.into(), value);
    }

    /// Adds quantiles of latencies.
    pub(crate) fn set_latencies(&mut self, name: &str, latencies: &Sorted) {
        for (label, share) in QUANTILES {
            self.set(format!("{name}.{label}_ns"), latencies.quantile(share));
        }
    }
}
