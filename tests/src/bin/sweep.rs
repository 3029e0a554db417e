//! `sweep`: ways of routing, compared in virtual time; see `--help`.

use clap::Parser;
use kvasir_tests::sweep::{Args, run};
use std::process::ExitCode;

fn main() -> ExitCode {
    match run(Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("sweep: {error:#}");
            ExitCode::FAILURE
        }
    }
}
