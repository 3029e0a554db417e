//! Processes of a run: starts this program in other roles, and measures processes.

use anyhow::{Context, Result};
use std::process::Stdio;
use std::time::Duration;
use std::{fs, io};
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::sync::oneshot;
use tokio::time::timeout;

/// Timeout for an expected line of a child.
const LINE_TIMEOUT: Duration = Duration::from_secs(60);

/// This program in another role. It ends when its standard input ends, and thus always with its parent.
#[derive(Debug)]
pub struct Role {
    child: Child,
    stdin: Option<ChildStdin>,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Role {
    /// Starts it.
    pub fn start(arguments: &[&str]) -> Result<Self> {
        let own = std::env::current_exe().context("find our own binary")?;
        let mut child = Command::new(own)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .process_group(0)
            .kill_on_drop(true)
            .spawn()?;
        let stdin = child.stdin.take();
        let stdout = child.stdout.take().context("a pipe")?;
        Ok(Self { child, stdin, lines: BufReader::new(stdout).lines() })
    }

    /// The next line of its output.
    pub async fn line(&mut self) -> Result<String> {
        let line = timeout(LINE_TIMEOUT, self.lines.next_line()).await.context("a line")??;
        line.context("a process of the run ended early")
    }

    /// Id of the process.
    pub fn process_id(&self) -> Option<u32> {
        self.child.id()
    }

    /// Ends the process, and returns its last line.
    pub async fn finish(mut self) -> Result<String> {
        drop(self.stdin.take());
        let last = self.line().await?;
        self.child.wait().await?;
        Ok(last)
    }
}

/// Ready when standard input ends. A separate thread reads it, and ends with it.
pub async fn stdin_ended() {
    let (ended, end) = oneshot::channel::<()>();
    let read = move || {
        let _unread = io::copy(&mut io::stdin(), &mut io::sink());
        drop(ended);
    };
    if std::thread::Builder::new().name("stdin".to_owned()).spawn(read).is_ok() {
        // No message is ever sent: this waits for the thread.
        drop(end.await);
    }
}

/// Resident memory of a process, in bytes.
pub fn resident_bytes(process_id: u32) -> Result<u64> {
    let status = fs::read_to_string(format!("/proc/{process_id}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kibibytes = line.and_then(|line| line.split_whitespace().next());
    Ok(kibibytes.context("VmRSS")?.parse::<u64>()? << 10)
}

/// Processor time that a process has used so far, in all its threads, with a precision of 10 ms.
pub fn cpu_time(process_id: u32) -> Result<Duration> {
    let stat = fs::read_to_string(format!("/proc/{process_id}/stat"))?;
    // The name in brackets may contain any characters; numbers follow.
    let (_, fields) = stat.rsplit_once(')').context("fields of stat")?;
    let ticks: u64 = fields
        .split_whitespace()
        .skip(11)
        .take(2)
        .map(|field| field.parse::<u64>().context("a number of ticks"))
        .sum::<Result<u64>>()?;
    let second = rustix::param::clock_ticks_per_second().max(1);
    Ok(Duration::from_nanos(ticks.saturating_mul(1_000_000_000 / second)))
}
