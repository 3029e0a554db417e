//! Entry of the process: configuration, logging, runtime, exit code. Nothing else.

use indexer_server::{
    app::{App, stop_signal},
    config::{self, Action, Config},
    telemetry::{LoggingError, start_logging},
};
use mimalloc::MiMalloc;
use std::{
    env,
    io::{self, Write},
    process::ExitCode,
    time::Duration,
};
use tokio::runtime::{Builder, Runtime};

#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

/// Bad usage, by the convention of sysexits.h.
const EXIT_USAGE: u8 = 64;
/// Longest wait for tasks that outlived their stop.
const RUNTIME_TIMEOUT: Duration = Duration::from_secs(1);

fn main() -> ExitCode {
    match config::read(env::args_os()) {
        Ok(Action::Print(text)) => print(&mut io::stdout(), &text, ExitCode::SUCCESS),
        Ok(Action::Run(config)) => start(*config),
        Err(error) => complain(&error.to_string(), ExitCode::from(EXIT_USAGE)),
    }
}

fn start(config: Config) -> ExitCode {
    let runtime = match Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return complain(&format!("runtime: {error}"), ExitCode::FAILURE),
    };
    let entered = runtime.enter();
    let otlp_endpoint = config.otlp_endpoint.as_deref();
    let logging = match start_logging(config.log_format, &config.log_filter, otlp_endpoint) {
        Ok(logging) => logging,
        Err(error @ (LoggingError::Filter(_) | LoggingError::Exporter(_))) => {
            return complain(&error.to_string(), ExitCode::from(EXIT_USAGE));
        }
        Err(error @ LoggingError::Taken(_)) => {
            return complain(&error.to_string(), ExitCode::FAILURE);
        }
    };
    drop(entered);
    let outcome = run(&runtime, config);
    logging.flush();
    runtime.shutdown_timeout(RUNTIME_TIMEOUT);
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => complain(&format!("{error:#}"), ExitCode::FAILURE),
    }
}

fn run(runtime: &Runtime, config: Config) -> anyhow::Result<()> {
    runtime.block_on(async {
        let signal = stop_signal()?;
        let app = App::build(config).await?;
        let addresses = app.addresses();
        tracing::info!(grpc = %addresses.grpc, http = %addresses.http, "listening");
        Box::pin(app.run(signal)).await?;
        Ok(())
    })
}

fn complain(text: &str, code: ExitCode) -> ExitCode {
    print(&mut io::stderr(), &format!("indexer-server: {}\n", text.trim_end()), code)
}

/// Prints; if that fails, nobody reads it.
fn print(to: &mut impl Write, text: &str, code: ExitCode) -> ExitCode {
    let _unread = to.write_all(text.as_bytes());
    code
}
