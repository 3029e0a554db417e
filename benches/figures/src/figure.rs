//! Computes statistics over the trials of a run.

use crate::number::{median, spread};
use serde::{Deserialize, Serialize};

/// A statistic of one measure over all trials.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Figure {
    /// The median.
    pub median: f64,
    /// Largest value minus smallest, as a fraction of the median.
    pub spread: f64,
    /// Number of trials.
    pub trials: usize,
}

/// One side of a comparison, as text.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Side {
    /// The median with its unit, and its origin if that is unclear.
    pub text: String,
    /// Largest value minus smallest, as a fraction of the median.
    pub spread: String,
    /// Number of trials.
    pub trials: usize,
}

impl Figure {
    /// Statistics of the trials' values; none without values.
    pub fn of(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let values: Vec<f64> = values.into_iter().collect();
        let median = median(&values);
        let spread = spread(&values);
        let trials = values.len();
        (trials > 0).then_some(Self { median, spread, trials })
    }

    /// Converts it to one side of a comparison; `show` formats the median.
    #[must_use]
    pub fn side(self, show: impl Fn(f64) -> String) -> Side {
        let spread = format!("{:.0} %", self.spread * 100.0);
        Side { text: show(self.median), spread, trials: self.trials }
    }
}
