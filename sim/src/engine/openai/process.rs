//! A handle to a `mock-engine` process with an HTTP side.

use super::args::Addresses;
use crate::server::binary_of;
use anyhow::{Context, Result, ensure};
use std::process::Stdio;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};
use tokio::time::timeout;

/// Name of the binary.
const BINARY: &str = "mock-engine";
/// Timeout for the process to become ready.
const START_TIMEOUT: Duration = Duration::from_secs(30);
/// Timeout for the process to end.
const STOP_TIMEOUT: Duration = Duration::from_secs(10);

/// A running process; dropping it kills the process.
#[derive(Debug)]
pub struct ServerProcess {
    child: Child,
    addresses: Addresses,
}

// === impl ServerProcess ===

impl ServerProcess {
    /// Starts an engine on free ports of the loopback interface, with further flags, which may override these ports.
    ///
    /// # Errors
    /// If the binary is missing, or the process does not become ready.
    pub async fn start(flags: &[&str]) -> Result<Self> {
        let mut program = Command::new(binary_of(BINARY)?);
        if !flags.contains(&"--listen") {
            program.args(["--listen", "127.0.0.1:0"]);
        }
        // A separate process group: Ctrl-C reaches only the parent process, which stops the engine.
        let mut child = program
            .process_group(0)
            .arg("--until-stdin-ends")
            .args(flags)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .context("start an engine")?;
        let mut lines = BufReader::new(child.stdout.take().context("standard output")?).lines();
        let line = timeout(START_TIMEOUT, lines.next_line()).await.context("it is silent")??;
        let line = line.context("the engine ended before it was ready")?;
        let addresses = serde_json::from_str(&line).context("read the engine's addresses")?;
        Ok(Self { child, addresses })
    }

    /// Addresses of the engine.
    #[must_use]
    pub const fn addresses(&self) -> &Addresses {
        &self.addresses
    }

    /// Id of the process, while it runs.
    #[must_use]
    pub fn pid(&self) -> Option<u32> {
        self.child.id()
    }

    /// Kills the process (SIGKILL) and waits for its end.
    ///
    /// # Errors
    /// If the system fails to kill it.
    pub async fn kill(mut self) -> Result<()> {
        self.child.kill().await.context("kill the engine")
    }

    /// Stops the process by closing its standard input, and waits for its end.
    ///
    /// # Errors
    /// If the process does not end, or ends with an error.
    pub async fn stop(mut self) -> Result<()> {
        drop(self.child.stdin.take());
        let end = timeout(STOP_TIMEOUT, self.child.wait()).await.context("it does not end")??;
        ensure!(end.success(), "the engine ended with {end}");
        Ok(())
    }
}
