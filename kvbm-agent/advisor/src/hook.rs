//! Runs the storage provider's program once for each piece of advice.

use crate::metrics::AdvisorMetrics;
use kvasir_tasks::tasks::Tasks;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::AsyncWriteExt;
use tokio::process::Command;
use tokio::select;
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

/// Maximum number of queued pieces of advice. Further ones are dropped, and given again after the repeat time.
pub const HOOKS_QUEUED_MAX: usize = 1_024;
/// Name of the tasks that run the program.
const RUN: &str = "hook";

/// The program to run, and its limits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HookConfig {
    /// Path of the program. It receives no arguments.
    pub program: PathBuf,
    /// Maximum run time of the program, which is then killed.
    pub timeout: Duration,
    /// Maximum number of concurrent runs.
    pub running_max: usize,
}

/// Outcome of one run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outcome {
    Done,
    Failed,
    TimedOut,
}

impl Outcome {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::Failed => "failed",
            Self::TimedOut => "timed_out",
        }
    }
}

/// Runs the program for each line of the queue until `stop` is cancelled; then waits for running programs.
pub async fn run_hooks(
    config: HookConfig,
    mut lines: mpsc::Receiver<String>,
    metrics: Arc<AdvisorMetrics>,
    stop: CancellationToken,
) {
    let config = Arc::new(config);
    let mut running = Tasks::default();
    let mut count = 0;
    loop {
        select! {
            () = stop.cancelled() => break,
            Some(_ended) = running.next_ended(), if count > 0 => count -= 1,
            line = lines.recv(), if count < config.running_max => {
                let Some(line) = line else { break };
                let config = Arc::clone(&config);
                let metrics = Arc::clone(&metrics);
                running.spawn(RUN, async move {
                    let outcome = run(&config, &line).await;
                    metrics.hooked(outcome.as_str());
                });
                count += 1;
            }
        }
    }
    // Each run ends within its own timeout.
    while running.next_ended().await.is_some() {}
}

async fn run(config: &HookConfig, line: &str) -> Outcome {
    let run = async {
        let mut child = Command::new(&config.program)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()?;
        if let Some(mut stdin) = child.stdin.take() {
            // Ignored: a program that reads no input may exit before the write.
            drop(stdin.write_all(line.as_bytes()).await);
        }
        child.wait().await
    };
    match timeout(config.timeout, run).await {
        Ok(Ok(status)) if status.success() => Outcome::Done,
        Ok(Ok(status)) => {
            tracing::warn!(%status, "the hook failed");
            Outcome::Failed
        }
        Ok(Err(error)) => {
            tracing::warn!(%error, program = %config.program.display(), "the hook does not run");
            Outcome::Failed
        }
        Err(_late) => {
            tracing::warn!(limit = ?config.timeout, "the hook took too long, and was killed");
            Outcome::TimedOut
        }
    }
}
