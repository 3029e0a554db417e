//! `mock-engine`: a mock engine as a process; see `--help`.

use anyhow::{Context, Result, ensure};
use clap::Parser;
use kvasir_sim::engine::openai::Args;
use kvasir_sim::engine::process::serve;
use std::io::{stdin, stdout};
use std::process::ExitCode;
use tokio::runtime::Runtime;

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("mock-engine: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args) -> Result<()> {
    let Some(listen) = args.listen else {
        ensure!(std::env::args().len() == 1, "options need --listen");
        return serve(stdin().lock(), stdout().lock());
    };
    let runtime = Runtime::new().context("start a runtime")?;
    let served = runtime.block_on(args.serve(listen));
    // A read of standard input may still block a thread.
    runtime.shutdown_background();
    served
}
