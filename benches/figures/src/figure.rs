//! Figures over the trials of a run.

use crate::number::{median, spread};
use serde::{Deserialize, Serialize};

/// A figure in all its trials.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Figure {
    /// The median.
    pub median: f64,
    /// Largest less smallest, as a share of it.
    pub spread: f64,
    /// How many trials.
    pub trials: usize,
}

/// One side of a comparison, as text.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Side {
    /// The median, with its unit, and whose it is if that is not clear.
    pub text: String,
    /// Largest less smallest, as a share of the median.
    pub spread: String,
    /// Trials that it is the median of.
    pub trials: usize,
}

impl Figure {
    /// The values of the trials; none if nothing was measured.
    pub fn of(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let values: Vec<f64> = values.into_iter().collect();
        let median = median(&values);
        let spread = spread(&values);
        let trials = values.len();
        (trials > 0).then_some(Self { median, spread, trials })
    }

    /// As one side of a comparison; `show` writes the median.
    #[must_use]
    pub fn side(self, show: impl Fn(f64) -> String) -> Side {
        let spread = format!("{:.0} %", self.spread * 100.0);
        Side { text: show(self.median), spread, trials: self.trials }
    }
}
