//! Measurements: one JSON object each.

use anyhow::Result;
use bench_figures::Figure;
use nix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};
use std::{io, io::Write, time::Duration};

/// One figure of one trial.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Measurement {
    /// Which server.
    pub subject: String,
    /// Trial, from 1.
    pub trial: usize,
    /// What was measured; unit last.
    pub measure: String,
    /// The figure.
    pub value: f64,
}

impl Measurement {
    /// Prints it, as a line.
    pub fn print(&self) -> Result<()> {
        let mut out = io::stdout().lock();
        serde_json::to_writer(&mut out, self)?;
        Ok(out.write_all(b"\n")?)
    }
}

/// A figure of a server; none if it was not measured.
pub fn figure(all: &[Measurement], subject: &str, measure: &str) -> Option<Figure> {
    let taken = all.iter().filter(|at| at.subject == subject && at.measure == measure);
    Figure::of(taken.map(|at| at.value))
}

/// The clock that all processes of the machine share, in nanoseconds.
pub fn now_ns() -> Result<u64> {
    Ok(u64::try_from(Duration::from(clock_gettime(ClockId::CLOCK_MONOTONIC)?).as_nanos())?)
}

/// The smallest value that `share` of all values do not exceed, in microseconds.
pub fn quantile_us(values: &mut [Duration], share: f64) -> Option<f64> {
    values.sort_unstable();
    let rank = (share * values.len() as f64).ceil() as usize;
    values.get(rank.saturating_sub(1)).map(|value| value.as_secs_f64() * 1e6)
}
