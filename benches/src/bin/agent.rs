//! `agent`: measures the agent between an engine's publisher and an index; see `--help`.

use clap::Parser;
use kvasir_benches::agent::{Args, run};
use std::process::ExitCode;

/// The agent's allocator.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let args = Args::parse();
    let check = args.check;
    match run(args) {
        Ok(met) if met || !check => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("agent: {error:#}");
            ExitCode::FAILURE
        }
    }
}
