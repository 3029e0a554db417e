//! Memory and open files of the programs.

use super::fleet::Fleet;
use super::report::Report;
use anyhow::Result;
use std::fs;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

/// Time between two looks.
const INTERVAL: Duration = Duration::from_secs(1);

/// What a process uses.
#[derive(Debug, Clone, Copy)]
pub struct Usage {
    /// Resident memory in bytes.
    pub memory_bytes: f64,
    /// Open files.
    pub files: f64,
}

/// What a process uses now; none if it has ended.
fn usage(process: u32) -> Option<Usage> {
    let status = fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let line = status.lines().find(|line| line.starts_with("VmRSS:"))?;
    let kibibytes: f64 = line.split_whitespace().nth(1)?.parse().ok()?;
    let files = fs::read_dir(format!("/proc/{process}/fd")).ok()?.count();
    Some(Usage { memory_bytes: kibibytes * 1024.0, files: files as f64 })
}

/// Looks at all programs until it is stopped.
pub async fn watch(fleet: Arc<Fleet>, report: Arc<Report>, stop: CancellationToken) -> Result<()> {
    let mut ticks = interval(INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    while !stop.is_cancelled() {
        ticks.tick().await;
        for (name, process) in fleet.processes().await {
            if let Some(usage) = usage(process) {
                report.usage(&name, process, usage);
            }
        }
    }
    Ok(())
}
