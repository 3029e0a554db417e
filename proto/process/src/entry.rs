//! From `main` to the runtime and to the exit code.

use crate::causes::causes;
use crate::config::ConfigError;
use crate::descriptors;
use crate::telemetry::{LogConfig, LoggingError, start_logging};
use std::{
    io::{self, Write},
    process::ExitCode,
    time::Duration,
};
use tokio::{
    runtime::{Builder, Runtime},
    select,
    signal::unix::{SignalKind, signal},
};

/// Bad usage, by the convention of sysexits.h.
const EXIT_USAGE: u8 = 64;
/// Longest wait for tasks that still run after the stop.
const RUNTIME_TIMEOUT: Duration = Duration::from_secs(1);

/// Runs `work` on a runtime of its own, with logging, as the process `name`. An error that a [`ConfigError`]
/// caused exits with the code of bad usage.
pub fn start<F>(name: &'static str, log: &LogConfig, work: impl FnOnce() -> F) -> ExitCode
where
    F: Future<Output = anyhow::Result<()>>,
{
    let runtime = match Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return fail(name, &format!("runtime: {error}")),
    };
    let entered = runtime.enter();
    let logging = match start_logging(name, log) {
        Ok(logging) => logging,
        Err(error @ (LoggingError::Filter(_) | LoggingError::Exporter(_))) => {
            return refuse(name, &error.to_string());
        }
        Err(error @ LoggingError::Taken(_)) => return fail(name, &error.to_string()),
    };
    drop(entered);
    if let Err(error) = descriptors::raise_limit() {
        tracing::warn!(%error, "the limit of open files cannot be raised");
    }
    let outcome = run(&runtime, work);
    logging.flush();
    runtime.shutdown_timeout(RUNTIME_TIMEOUT);
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if error.chain().any(|cause| cause.is::<ConfigError>()) => {
            refuse(name, &causes(error.as_ref()))
        }
        Err(error) => fail(name, &causes(error.as_ref())),
    }
}

fn run<F>(runtime: &Runtime, work: impl FnOnce() -> F) -> anyhow::Result<()>
where
    F: Future<Output = anyhow::Result<()>>,
{
    runtime.block_on(async { Box::pin(work()).await })
}

/// Prints the requested text to standard output.
pub fn answer(text: &str) -> ExitCode {
    print(&mut io::stdout(), text, ExitCode::SUCCESS)
}

/// Reports an invalid configuration.
pub fn refuse(name: &str, text: &str) -> ExitCode {
    report(name, text, ExitCode::from(EXIT_USAGE))
}

fn fail(name: &str, text: &str) -> ExitCode {
    report(name, text, ExitCode::FAILURE)
}

fn report(name: &str, text: &str, code: ExitCode) -> ExitCode {
    print(&mut io::stderr(), &format!("{name}: {}\n", text.trim_end()), code)
}

/// Prints; if that fails, there is no reader.
fn print(to: &mut impl Write, text: &str, code: ExitCode) -> ExitCode {
    let _unread = to.write_all(text.as_bytes());
    code
}

/// Waits for SIGTERM or SIGINT.
///
/// # Errors
/// If the signals cannot be listened to.
pub fn stop_signal() -> io::Result<impl Future<Output = ()>> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    Ok(async move {
        select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    })
}
