//! Entry of the process: configuration, then the gateway. Nothing else.

use kvasir_gateway::app;
use kvasir_gateway::config::{self, Config, Options, PROGRAM};
use kvasir_process::config::{Action, warn_of_unknown_variables};
use kvasir_process::entry::{answer, refuse, start, stop_signal};
use mimalloc::MiMalloc;
use std::env;
use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

fn main() -> ExitCode {
    match config::read(env::args_os()) {
        Ok(Action::Print(text)) => answer(&text),
        Ok(Action::Run(config)) => {
            let log = config.process.log.clone();
            start(PROGRAM, &log, || run(*config))
        }
        Err(error) => refuse(PROGRAM, &error.to_string()),
    }
}

async fn run(config: Config) -> anyhow::Result<()> {
    let signal = stop_signal()?;
    warn_of_unknown_variables::<Options>();
    Box::pin(app::run(config, signal)).await?;
    Ok(())
}
