//! Runs one process that measures something, and collects its output.

use anyhow::{Context, Result, bail};
use bench_figures::{Outcome, Raw};
use nix::sys::signal::{Signal, kill, killpg};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use serde_json::Value;
use std::fs::{self, File};
use std::io::{Read, Seek};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Maximum length of a failed job's error output, in bytes. The end is kept, because it has the reason.
const COMPLAINT_BYTES_MAX: usize = 600;
/// Polling interval of a job.
const LOOK_INTERVAL: Duration = Duration::from_millis(20);
/// Timeout for a job to end after it was asked to stop. The job ends its own processes in this time.
const STOP_TIMEOUT: Duration = Duration::from_secs(15);

/// Whether the run should end now.
pub(crate) static STOP: AtomicBool = AtomicBool::new(false);

/// A process to run once.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Job {
    /// Name of the job, unique within its part.
    pub(crate) name: String,
    pub(crate) program: PathBuf,
    pub(crate) arguments: Vec<String>,
    /// Expected duration, in seconds.
    pub(crate) secs: f64,
    /// Timeout of the job.
    pub(crate) limit: Duration,
    /// File to which the job writes its lines; none for standard output.
    pub(crate) out: Option<PathBuf>,
}

impl Job {
    /// Programs and arguments. A job with others counts as a different trial.
    pub(crate) fn identity(&self, programs: &str) -> String {
        format!("{programs} {}", self.arguments.join(" "))
    }

    /// Runs the job. None if the run was interrupted: its process has then ended.
    pub(crate) fn run(&self, identity: String, scratch: &Path) -> Result<Option<Raw>> {
        let begin = Instant::now();
        let file = |name: &str| {
            let path = scratch.join(name);
            let mut open = File::options();
            let file = open.read(true).write(true).create(true).truncate(true).open(&path);
            file.with_context(|| format!("create {}", path.display()))
        };
        let mut output = file("output")?;
        let mut complaint = file("complaint")?;
        let child = Command::new(&self.program)
            .args(&self.arguments)
            // Keep the error output short, without backtraces.
            .env("RUST_BACKTRACE", "0")
            .stdin(Stdio::null())
            .stdout(output.try_clone()?)
            .stderr(complaint.try_clone()?)
            .process_group(0)
            .spawn()
            .with_context(|| format!("start {}", self.program.display()))?;
        let ended = Running::new(child)?.wait(begin + self.limit)?;
        let failed = match ended {
            Ended::Interrupted => return Ok(None),
            Ended::Well => None,
            Ended::Badly(how) => Some(how),
        };
        let outcome = match failed {
            None => {
                let text = match &self.out {
                    Some(path) => fs::read_to_string(path)
                        .with_context(|| format!("read {}", path.display()))?,
                    None => text(&mut output)?,
                };
                lines(&text)
            }
            Some(how) => {
                let all = text(&mut complaint)?;
                Outcome::Failed(format!("{how}: {}", end(all.trim())))
            }
        };
        let secs = begin.elapsed().as_secs_f64();
        Ok(Some(Raw { name: self.name.clone(), identity, secs, outcome }))
    }
}

fn text(file: &mut File) -> Result<String> {
    let mut bytes = Vec::new();
    file.rewind()?;
    file.read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// The end of an error output.
fn end(text: &str) -> &str {
    let start = text.len().saturating_sub(COMPLAINT_BYTES_MAX);
    text.get(text.ceil_char_boundary(start)..).unwrap_or_default()
}

/// The output of a job as a trial's result.
pub(crate) fn lines(text: &str) -> Outcome {
    let values: Result<Vec<Value>, _> = text.lines().map(serde_json::from_str).collect();
    match values {
        Ok(values) if values.is_empty() => Outcome::Failed("it printed nothing".to_owned()),
        Ok(values) => Outcome::Done(values),
        Err(error) => Outcome::Failed(format!("it printed something else than JSON: {error}")),
    }
}

enum Ended {
    Well,
    Badly(String),
    Interrupted,
}

/// A process in its own group, which is killed completely on drop.
struct Running {
    group: Pid,
    ended: bool,
    _child: Child,
}

impl Running {
    fn new(child: Child) -> Result<Self> {
        Ok(Self { group: Pid::from_raw(i32::try_from(child.id())?), ended: false, _child: child })
    }

    fn wait(mut self, deadline: Instant) -> Result<Ended> {
        loop {
            if let Some(ended) = self.poll()? {
                return Ok(ended);
            }
            if STOP.load(Ordering::Relaxed) {
                self.stop()?;
                return Ok(Ended::Interrupted);
            }
            if Instant::now() >= deadline {
                self.stop()?;
                return Ok(Ended::Badly("it took too long".to_owned()));
            }
            thread::sleep(LOOK_INTERVAL);
        }
    }

    fn poll(&mut self) -> Result<Option<Ended>> {
        let ended = match waitpid(self.group, Some(WaitPidFlag::WNOHANG))? {
            WaitStatus::StillAlive => return Ok(None),
            WaitStatus::Exited(_, 0) => Ended::Well,
            WaitStatus::Exited(_, code) => Ended::Badly(format!("it ended with {code}")),
            WaitStatus::Signaled(_, signal, _) => Ended::Badly(format!("it was ended by {signal}")),
            other => bail!("a state that was not asked for: {other:?}"),
        };
        self.ended = true;
        Ok(Some(ended))
    }

    /// Asks the process to end, which ends its children, and kills the rest of its group.
    fn stop(&mut self) -> Result<()> {
        let deadline = Instant::now() + STOP_TIMEOUT;
        // The process may have ended just now.
        let _ended_already = kill(self.group, Signal::SIGINT);
        while self.poll()?.is_none() && Instant::now() < deadline {
            thread::sleep(LOOK_INTERVAL);
        }
        Ok(())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Also kills processes left in the group; fails if there are none.
        let _none_left = killpg(self.group, Signal::SIGKILL);
        if !self.ended {
            let _reaped = waitpid(self.group, None);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_json_is_a_failure() {
        assert_eq!(
            lines("{}\n1\n"),
            Outcome::Done(vec![Value::Object(Default::default()), 1.into()])
        );
        for text in ["", "{}\nnot json\n"] {
            assert!(matches!(lines(text), Outcome::Failed(_)), "{text:?}");
        }
    }

    #[test]
    fn the_end_of_a_complaint_is_kept() {
        let long = format!("{}ä the reason", "x".repeat(COMPLAINT_BYTES_MAX));
        assert!(end(&long).len() <= COMPLAINT_BYTES_MAX && end(&long).ends_with("the reason"));
        assert_eq!(end("short"), "short");
    }
}
