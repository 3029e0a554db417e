//! Entry point of the process: reads the configuration, then runs the application.

use indexer_server::app::App;
use indexer_server::config::{self, Config, Options};
use kvasir_process::entry::{self, StopSignal};
use mimalloc::MiMalloc;
use std::env;
use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

fn main() -> ExitCode {
    let read = config::read(env::args_os());
    entry::main::<Options, _, _, _>(read, |config| &config.log, run)
}

async fn run(config: Config, signal: StopSignal) -> anyhow::Result<()> {
    let app = App::build(config).await?;
    let addresses = app.addresses();
    tracing::info!(grpc = %addresses.grpc, http = %addresses.http, "listening");
    Box::pin(app.run(signal)).await?;
    Ok(())
}
