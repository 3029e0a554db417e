//! `load`: compares queries to an indexer-server with a bare echo; see `--help`.

use clap::Parser;
use kvasir_benches::load::{self, Args, Role};
use std::process::ExitCode;
use tokio::select;
use tokio::signal::ctrl_c;

/// The server's allocator, so that the echo differs only by the work that it omits.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Exit code of an interrupted process, as shells report SIGINT.
const INTERRUPTED: u8 = 130;

#[tokio::main]
async fn main() -> ExitCode {
    let args = Args::parse();
    let outcome = match args.role.clone() {
        None => {
            let check = args.check;
            // Dropping the run ends its processes.
            select! {
                met = load::run(args) => met.map(|met| met || !check),
                _ = ctrl_c() => return ExitCode::from(INTERRUPTED),
            }
        }
        Some(Role::Report { folder }) => load::report(&folder).map(|()| true),
        Some(Role::Checkpoints(args)) => load::run_checkpoints(args).await.map(|()| true),
        Some(Role::Scale(args)) => load::run_scale(args).await.map(|()| true),
        Some(Role::Tls { trials, quick }) => load::run_tls(trials, quick).await.map(|()| true),
        Some(Role::Echo) => load::echo().await.map(|()| true),
        Some(Role::Publish { server, rate }) => load::publish(server, rate).await.map(|()| true),
    };
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("load: {error:#}");
            ExitCode::FAILURE
        }
    }
}
