use super::{CheckpointError, Report};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// Metrics of checkpoints.
#[derive(Debug, Clone)]
pub struct CheckpointMetrics {
    written: Counter,
    failed: Counter,
    bytes: Counter,
    disk_bytes: Gauge,
    duration: Histogram,
    last: Arc<Mutex<Last>>,
}

#[derive(Debug, Default)]
struct Last {
    written_at: Option<Instant>,
    /// Bytes written so far, as counted by the store.
    written_bytes: u64,
    error: String,
}

/// Figures of the checkpoints so far.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CheckpointFigures {
    /// Number of written checkpoints.
    pub written: u64,
    /// Number of failed checkpoints.
    pub failed: u64,
    /// Time since the last successful checkpoint.
    pub age: Option<Duration>,
    /// Bytes on disk.
    pub disk_bytes: u64,
    /// Why the last checkpoint failed; "" if it succeeded.
    pub error: String,
}

impl CheckpointMetrics {
    /// Registers the metrics.
    #[must_use]
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self {
            written: Counter::default(),
            failed: Counter::default(),
            bytes: Counter::default(),
            disk_bytes: Gauge::default(),
            // From 1 ms to 17 minutes.
            duration: Histogram::new((0..11).map(|step| 1e-3 * 4_f64.powi(step))),
            last: Arc::default(),
        };
        registry.register("checkpoints", "Checkpoints written", metrics.written.clone());
        registry.register(
            "checkpoint_failures",
            "Checkpoints that failed; the next checkpoint includes the changes",
            metrics.failed.clone(),
        );
        registry.register_with_unit(
            "checkpoint_written",
            "Bytes written by the checkpoint store since start, including log and compactions",
            Unit::Bytes,
            metrics.bytes.clone(),
        );
        registry.register_with_unit(
            "checkpoint_disk",
            "Size of the checkpoint store on disk",
            Unit::Bytes,
            metrics.disk_bytes.clone(),
        );
        registry.register_with_unit(
            "checkpoint_duration",
            "Duration of a successful checkpoint",
            Unit::Seconds,
            metrics.duration.clone(),
        );
        metrics
    }

    fn last(&self) -> MutexGuard<'_, Last> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records a successful checkpoint.
    pub(super) fn written(&self, report: &Report) {
        self.written.inc();
        self.duration.observe(report.duration.as_secs_f64());
        self.disk_bytes.set(i64::try_from(report.disk_bytes).unwrap_or(i64::MAX));
        let written_at = Some(Instant::now());
        let written_bytes = report.written_bytes;
        let mut last = self.last();
        // A store that was reopened counts from 0.
        let before = Some(last.written_bytes).filter(|before| *before <= written_bytes);
        self.bytes.inc_by(written_bytes - before.unwrap_or_default());
        *last = Last { written_at, written_bytes, error: String::new() };
    }

    pub(super) fn failed(&self, error: &CheckpointError) {
        self.failed.inc();
        self.last().error = error.to_string();
    }

    /// Returns the figures of the checkpoints so far.
    #[must_use]
    pub fn figures(&self) -> CheckpointFigures {
        let last = self.last();
        CheckpointFigures {
            written: self.written.get(),
            failed: self.failed.get(),
            age: last.written_at.map(|at| at.elapsed()),
            disk_bytes: u64::try_from(self.disk_bytes.get()).unwrap_or_default(),
            error: last.error.clone(),
        }
    }
}
