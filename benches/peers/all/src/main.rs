//! Runs all benches, one trial after the other, and writes one report. `benches/report` builds what it needs and starts
//! it; `benches/README.md` explains how to read the results.

mod compare;
mod explanations;
mod job;
mod machine;
mod part;
mod progress;
mod report;
mod run;

use clap::Parser;
use std::process::ExitCode;

fn main() -> ExitCode {
    match run::run(&run::Options::parse()) {
        Ok(run::End::Good) => ExitCode::SUCCESS,
        Ok(run::End::Failed) => ExitCode::FAILURE,
        Ok(run::End::Interrupted) => ExitCode::from(run::INTERRUPTED),
        Err(error) => {
            eprintln!("bench-report: {error:#}");
            ExitCode::FAILURE
        }
    }
}
