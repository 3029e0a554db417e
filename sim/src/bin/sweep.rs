//! `sweep`: compares routing policies in virtual time, and repeats one point with processes; see `--help`.

use clap::Parser;
use kvasir_sim::sweep::{Args, Ending, run};
use std::process::ExitCode;

/// Exit code of an interrupted process, as shells report SIGINT.
const INTERRUPTED: u8 = 130;

fn main() -> ExitCode {
    match run(Args::parse()) {
        Ok(Ending::Complete) => ExitCode::SUCCESS,
        Ok(Ending::Interrupted) => ExitCode::from(INTERRUPTED),
        Err(error) => {
            eprintln!("sweep: {error:#}");
            ExitCode::FAILURE
        }
    }
}
