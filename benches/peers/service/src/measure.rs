//! Measurements: one JSON object each.

use anyhow::Result;
use serde::Serialize;
use std::{fs::File, io::Write, time::Duration};

/// One figure of one trial.
#[derive(Debug, Clone, Serialize)]
pub struct Measurement {
    /// Which part of the benches.
    pub bench: &'static str,
    /// Which server.
    pub subject: &'static str,
    /// Trial, from 0.
    pub trial: usize,
    /// What was measured; unit last.
    pub measure: String,
    /// The figure.
    pub value: f64,
}

/// All measurements, in memory and in a file.
#[derive(Debug)]
pub struct Measurements {
    file: File,
    /// In the order taken.
    pub all: Vec<Measurement>,
}

impl Measurements {
    /// Writes to `file`, a line each.
    pub fn new(file: File) -> Self {
        Self { file, all: Vec::new() }
    }

    /// Takes one down.
    pub fn add(
        &mut self,
        subject: &'static str,
        trial: usize,
        measure: &str,
        value: f64,
    ) -> Result<()> {
        let measure = measure.to_owned();
        let taken = Measurement { bench: "service", subject, trial, measure, value };
        serde_json::to_writer(&mut self.file, &taken)?;
        self.file.write_all(b"\n")?;
        self.all.push(taken);
        Ok(())
    }

    /// Median over the trials; none if it was not measured.
    pub fn median(&self, subject: &str, measure: &str) -> Option<f64> {
        let taken = self.all.iter().filter(|at| at.subject == subject && at.measure == measure);
        let mut values: Vec<f64> = taken.map(|at| at.value).collect();
        values.sort_unstable_by(f64::total_cmp);
        let upper = *values.get(values.len() / 2)?;
        let lower = *values.get((values.len() - 1) / 2)?;
        Some(f64::midpoint(lower, upper))
    }
}

/// The smallest value that `share` of all values do not exceed, in microseconds.
pub fn quantile_us(values: &mut [Duration], share: f64) -> Option<f64> {
    values.sort_unstable();
    let rank = (share * values.len() as f64).ceil() as usize;
    values.get(rank.saturating_sub(1)).map(|value| value.as_secs_f64() * 1e6)
}
