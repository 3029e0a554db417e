//! Signals that ask a process to stop.

use anyhow::{Context, Result};
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Ctrl-C and SIGTERM.
#[derive(Debug)]
pub struct StopSignals {
    interrupt: Signal,
    terminate: Signal,
}

impl StopSignals {
    /// Handles the signals from now on. By default they would kill the process.
    ///
    /// # Errors
    /// If the system fails to install the handlers.
    pub fn listen() -> Result<Self> {
        let interrupt = signal(SignalKind::interrupt()).context("listen for SIGINT")?;
        let terminate = signal(SignalKind::terminate()).context("listen for SIGTERM")?;
        Ok(Self { interrupt, terminate })
    }

    /// Completes when the process is asked to stop.
    pub async fn received(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}
