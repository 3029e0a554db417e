//! What one trial prints: one line of JSON.

use crate::samples::Sorted;
use crate::workload::Kind;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The figures of one trial.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Line {
    pub(crate) index: String,
    pub(crate) workload: Kind,
    pub(crate) workers: usize,
    pub(crate) pairs: usize,
    pub(crate) seed: u64,
    /// By name; names say what, of what, and in which unit.
    pub(crate) figures: BTreeMap<String, f64>,
}

impl Line {
    pub(crate) fn set(&mut self, name: impl Into<String>, value: f64) {
        self.figures.insert(name.into(), value);
    }

    /// Adds median and tail of latencies.
    pub(crate) fn set_latencies(&mut self, name: &str, latencies: &Sorted) {
        for (label, share) in [("p50", 0.5), ("p99", 0.99), ("p999", 0.999)] {
            self.set(format!("{name}.{label}_ns"), latencies.quantile(share));
        }
    }
}
