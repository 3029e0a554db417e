//! `demo`: runs an indexer-server with a fleet of mock engines and a workload; see `--help`.

use clap::Parser;
use kvasir_sim::demo::{Args, Outcome, run};
use std::process::ExitCode;

/// Exit code of an interrupted process, as shells report SIGINT.
const INTERRUPTED: u8 = 130;

#[tokio::main]
async fn main() -> ExitCode {
    match run(Args::parse()).await {
        Ok(Outcome::Verified) => ExitCode::SUCCESS,
        Ok(Outcome::Different) => ExitCode::FAILURE,
        Ok(Outcome::Interrupted) => ExitCode::from(INTERRUPTED),
        Err(error) => {
            eprintln!("demo: {error:#}");
            ExitCode::FAILURE
        }
    }
}
