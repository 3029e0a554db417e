//! Runs a program from `main`: configuration, logging, runtime, exit code.

use crate::config::{Action, ConfigError, Options, unknown_variables_of};
use crate::descriptors;
use crate::telemetry::{LogConfig, LoggingError, start_logging};
use kvasir_tasks::causes::causes;
use std::io::{self, Write};
use std::pin::Pin;
use std::process::ExitCode;
use std::time::Duration;
use tokio::runtime::{Builder, Runtime};
use tokio::select;
use tokio::signal::unix::{SignalKind, signal};

/// Exit code for invalid usage, by the convention of sysexits.h.
const EXIT_USAGE: u8 = 64;
/// Timeout for tasks that still run after the stop.
const RUNTIME_TIMEOUT: Duration = Duration::from_secs(1);

/// Ready when the process should stop.
pub type StopSignal = Pin<Box<dyn Future<Output = ()>>>;

/// `main` of a program with the options `O`. Prints the help, the version or the configuration if the command line
/// requests it, and rejects an invalid configuration. Otherwise runs `work` with the configuration and a signal that is
/// ready when the process should stop. `log` returns the logging section of the configuration.
pub fn main<O, C, E, F>(
    read: Result<Action<C>, ConfigError>,
    log: impl FnOnce(&C) -> &LogConfig,
    work: impl FnOnce(C, StopSignal) -> F,
) -> ExitCode
where
    O: Options,
    E: Into<anyhow::Error>,
    F: Future<Output = Result<(), E>>,
{
    match read {
        Ok(Action::Print(text)) => print(&mut io::stdout(), &text, ExitCode::SUCCESS),
        Ok(Action::Run(config, warnings)) => {
            let log = log(&config).clone();
            start(O::PROGRAM, &log, async || {
                let signal = stop_signal()?;
                for warning in warnings.into_iter().chain(unknown_variables_of::<O>()) {
                    tracing::warn!("{warning}");
                }
                work(*config, Box::pin(signal)).await.map_err(Into::into)
            })
        }
        Err(error) => {
            // A misspelt variable may be the cause.
            for warning in unknown_variables_of::<O>() {
                report(O::PROGRAM, &warning, ExitCode::SUCCESS);
            }
            refuse(O::PROGRAM, &error.to_string())
        }
    }
}

/// Runs `work` on its own runtime, with logging, as the process `name`. An error caused by a [`ConfigError`] exits with
/// the code for invalid usage.
fn start<F>(name: &'static str, log: &LogConfig, work: impl FnOnce() -> F) -> ExitCode
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

/// Prints an invalid configuration's error.
fn refuse(name: &str, text: &str) -> ExitCode {
    report(name, text, ExitCode::from(EXIT_USAGE))
}

fn fail(name: &str, text: &str) -> ExitCode {
    report(name, text, ExitCode::FAILURE)
}

fn report(name: &str, text: &str, code: ExitCode) -> ExitCode {
    print(&mut io::stderr(), &format!("{name}: {}\n", text.trim_end()), code)
}

/// Prints the text. A failure to print is ignored: no reader is left.
fn print(to: &mut impl Write, text: &str, code: ExitCode) -> ExitCode {
    let _unread = to.write_all(text.as_bytes());
    code
}

/// Waits for SIGTERM or SIGINT.
///
/// # Errors
/// If the signal handlers cannot be installed.
fn stop_signal() -> io::Result<impl Future<Output = ()>> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    Ok(async move {
        select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    })
}
