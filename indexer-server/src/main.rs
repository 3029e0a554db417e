//! Entry of the process: configuration, then the application. Nothing else.

use indexer_server::{
    app::App,
    config::{self, Action, Config, Options},
};
use kvasir_process::{
    config::warn_of_unknown_variables,
    entry::{answer, refuse, start, stop_signal},
};
use mimalloc::MiMalloc;
use std::{env, process::ExitCode};

#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

const NAME: &str = "indexer-server";

fn main() -> ExitCode {
    match config::read(env::args_os()) {
        Ok(Action::Print(text)) => answer(&text),
        Ok(Action::Run(config)) => {
            let log = config.log.clone();
            start(NAME, &log, || run(*config))
        }
        Err(error) => refuse(NAME, &error.to_string()),
    }
}

async fn run(config: Config) -> anyhow::Result<()> {
    let signal = stop_signal()?;
    warn_of_unknown_variables::<Options>();
    let app = App::build(config).await?;
    let addresses = app.addresses();
    tracing::info!(grpc = %addresses.grpc, http = %addresses.http, "listening");
    Box::pin(app.run(signal)).await?;
    Ok(())
}
