//! Child processes: started in their own group, measured externally, ended by id.

use crate::stream::Stream;
use anyhow::{Context, Result, bail, ensure};
use nix::sys::signal::{Signal, killpg};
use nix::time::{clock_getcpuclockid, clock_gettime};
use nix::unistd::Pid;
use std::fs::{self, File};
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::time::{sleep, timeout};

/// Timeout for a process to end by itself; then it is killed.
const STOP_TIMEOUT: Duration = Duration::from_secs(10);
/// Timeout for a line of the publishers.
const LINE_TIMEOUT: Duration = Duration::from_secs(120);
/// CPU time below which a process counts as idle, within [`IDLE_WINDOW`].
const IDLE_CPU: Duration = Duration::from_millis(2);
/// Window of the idle check.
const IDLE_WINDOW: Duration = Duration::from_millis(200);
/// Maximum number of idle checks.
const IDLE_LOOKS_MAX: usize = 100;

/// A server under test, killed on drop.
#[derive(Debug)]
pub struct Server {
    child: Child,
    pid: Pid,
    ended: bool,
}

impl Server {
    /// Starts `command`, with its output in the file `log`.
    pub fn start(mut command: Command, log: &Path) -> Result<Self> {
        let file = File::create(log).with_context(|| format!("create {}", log.display()))?;
        let child = command
            .stdin(Stdio::null())
            .stdout(file.try_clone()?)
            .stderr(file)
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("start {command:?}"))?;
        let id = child.id().context("a process that was just started has an id")?;
        Ok(Self { child, pid: Pid::from_raw(i32::try_from(id)?), ended: false })
    }

    /// Fails if the process has ended.
    pub fn check(&mut self) -> Result<()> {
        match self.child.try_wait()? {
            None => Ok(()),
            Some(status) => bail!("the server ended with {status}"),
        }
    }

    /// User and system time used so far by the process and its descendants.
    pub fn cpu(&self) -> Result<Duration> {
        tree(self.pid)?.into_iter().map(process_cpu).sum()
    }

    /// Resident bytes of the process and its descendants.
    pub fn resident_bytes(&self) -> Result<u64> {
        tree(self.pid)?.into_iter().map(|pid| status_bytes(pid, "VmRSS:")).sum()
    }

    /// Maximum resident bytes since [`Self::reset_peak`].
    pub fn peak_bytes(&self) -> Result<u64> {
        tree(self.pid)?.into_iter().map(|pid| status_bytes(pid, "VmHWM:")).sum()
    }

    /// Resets the maximum of resident bytes.
    pub fn reset_peak(&self) -> Result<()> {
        for pid in tree(self.pid)? {
            fs::write(format!("/proc/{pid}/clear_refs"), "5")?;
        }
        Ok(())
    }

    /// Waits until the process uses almost no CPU time.
    pub async fn idle(&self) -> Result<()> {
        let mut before = self.cpu()?;
        for _ in 0..IDLE_LOOKS_MAX {
            sleep(IDLE_WINDOW).await;
            let now = self.cpu()?;
            if now - before < IDLE_CPU {
                return Ok(());
            }
            before = now;
        }
        bail!("the server does not come to rest");
    }

    /// Asks the process and its children to end, and kills them if they do not.
    pub async fn stop(mut self) -> Result<()> {
        killpg(self.pid, Signal::SIGTERM)?;
        if timeout(STOP_TIMEOUT, self.child.wait()).await.is_err() {
            self.kill();
            self.child.wait().await?;
        }
        self.ended = true;
        Ok(())
    }

    /// Kills the process and its children.
    fn kill(&self) {
        // Fails if no process is left.
        let _none_left = killpg(self.pid, Signal::SIGKILL);
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if !self.ended {
            self.kill();
        }
    }
}

fn process_cpu(pid: Pid) -> Result<Duration> {
    // More precise than /proc/PID/stat with its ticks of 10 ms: nanoseconds.
    Ok(clock_gettime(clock_getcpuclockid(pid)?)?.into())
}

/// A process and all its descendants.
fn tree(root: Pid) -> Result<Vec<Pid>> {
    let mut found = vec![root];
    let mut at = 0;
    while let Some(pid) = found.get(at).copied() {
        at += 1;
        for task in fs::read_dir(format!("/proc/{pid}/task"))? {
            // A thread may end meanwhile.
            let children = fs::read_to_string(task?.path().join("children")).unwrap_or_default();
            for child in children.split_whitespace() {
                found.push(Pid::from_raw(child.parse()?));
            }
        }
    }
    Ok(found)
}

fn status_bytes(pid: Pid, field: &str) -> Result<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix(field));
    let kibibytes = line.and_then(|line| line.trim().strip_suffix(" kB"));
    Ok(kibibytes.with_context(|| format!("{field} of {pid}"))?.trim().parse::<u64>()? * 1024)
}

/// The process of all publishers, killed on drop.
#[derive(Debug)]
pub struct Publishers {
    _child: Child,
    stdin: ChildStdin,
    lines: Lines<BufReader<ChildStdout>>,
    /// Ports of the publishers on 127.0.0.1, by worker.
    pub ports: Vec<u16>,
}

impl Publishers {
    /// Starts the publishers and waits until they listen.
    pub async fn start(stream: &Stream) -> Result<Self> {
        let events = stream.events().to_string();
        let workers = stream.workers().to_string();
        let mut child = Command::new(std::env::current_exe()?)
            .args(["publish", "--events", &events, "--workers", &workers])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
            .context("start the publishers")?;
        let stdin = child.stdin.take().context("the publishers' standard input")?;
        let stdout = child.stdout.take().context("the publishers' standard output")?;
        let lines = BufReader::new(stdout).lines();
        let mut publishers = Self { _child: child, stdin, lines, ports: Vec::new() };
        let bound = publishers.line("bound ").await?;
        publishers.ports = bound.split(',').map(str::parse).collect::<Result<_, _>>()?;
        ensure!(publishers.ports.len() == stream.workers(), "a port for each worker: {bound}");
        Ok(publishers)
    }

    /// Waits until every publisher has a subscriber.
    pub async fn subscribed(&mut self) -> Result<()> {
        self.line("subscribed").await.map(drop)
    }

    /// Starts the sending.
    pub async fn go(&mut self) -> Result<()> {
        Ok(self.stdin.write_all(b"go\n").await?)
    }

    /// Waits until everything is passed to the sockets. Returns how long this took.
    pub async fn sent(&mut self) -> Result<Duration> {
        Ok(Duration::from_secs_f64(self.line("sent ").await?.parse()?))
    }

    /// Stores the blocks that the background load removes first.
    pub async fn fill(&mut self) -> Result<()> {
        self.stdin.write_all(b"fill 0\n").await?;
        self.line("filled ").await.map(drop)
    }

    /// Sets the rate of the background load, in blocks stored and removed per second. Returns the maximum lateness of
    /// 99 of 100 batches at the previous rate.
    pub async fn rate(&mut self, blocks_per_second: u64) -> Result<Duration> {
        self.stdin.write_all(format!("rate {blocks_per_second}\n").as_bytes()).await?;
        Ok(Duration::from_micros(self.line("late ").await?.parse()?))
    }

    /// Sends a probe that stores or removes a block.
    pub async fn probe(&mut self, number: u64, is_stored: bool) -> Result<()> {
        let command = if is_stored { "store" } else { "remove" };
        Ok(self.stdin.write_all(format!("{command} {number}\n").as_bytes()).await?)
    }

    /// Time when the probe was sent, in nanoseconds.
    pub async fn probed_ns(&mut self) -> Result<u64> {
        Ok(self.line("at ").await?.parse()?)
    }

    async fn line(&mut self, start: &str) -> Result<String> {
        let line = timeout(LINE_TIMEOUT, self.lines.next_line())
            .await
            .with_context(|| format!("the publishers do not say {start:?}"))??
            .with_context(|| format!("the publishers ended before {start:?}"))?;
        let rest = line.strip_prefix(start);
        Ok(rest.with_context(|| format!("{start:?}, not {line:?}"))?.to_owned())
    }
}
