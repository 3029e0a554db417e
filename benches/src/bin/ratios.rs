//! `ratios`: micro-benchmarks as ratios, compared with the committed ones; see `--help`.

use clap::Parser;
use kvasir_benches::ratios::{Args, run};
use std::process::ExitCode;

/// The server's allocator.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("ratios: {error:#}");
            ExitCode::FAILURE
        }
    }
}
