//! Results of measurements: one JSON object each.

use anyhow::Result;
use bench_figures::Figure;
use nix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};
use std::io;
use std::io::Write;
use std::time::Duration;

/// One result of one trial.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Measurement {
    /// Name of the server.
    pub subject: String,
    /// Number of the trial, from 1.
    pub trial: usize,
    /// Name of the measure, with the unit last.
    pub measure: String,
    /// Value of the measure.
    pub value: f64,
}

impl Measurement {
    /// Prints the result as a line.
    pub fn print(&self) -> Result<()> {
        let mut out = io::stdout().lock();
        serde_json::to_writer(&mut out, self)?;
        Ok(out.write_all(b"\n")?)
    }
}

/// Statistics of a server's measure; none if it was not measured.
pub fn figure(all: &[Measurement], subject: &str, measure: &str) -> Option<Figure> {
    let taken = all.iter().filter(|at| at.subject == subject && at.measure == measure);
    Figure::of(taken.map(|at| at.value))
}

/// Time in nanoseconds on the clock that all processes of the machine share.
pub fn now_ns() -> Result<u64> {
    Ok(u64::try_from(Duration::from(clock_gettime(ClockId::CLOCK_MONOTONIC)?).as_nanos())?)
}

/// The smallest value that `share` of all values do not exceed, in microseconds.
pub fn quantile_us(values: &mut [Duration], share: f64) -> Option<f64> {
    values.sort_unstable();
    let rank = (share * values.len() as f64).ceil() as usize;
    values.get(rank.saturating_sub(1)).map(|value| value.as_secs_f64() * 1e6)
}
