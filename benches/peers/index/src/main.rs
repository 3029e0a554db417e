//! The index beside the best published ones. `benches/README.md` says how to run and read it.

mod random;

mod workload;

mod indexes;

mod line;
mod meter;
mod samples;

mod measures;
mod trial;

mod agree;
mod record;

mod plan;
mod report;
mod run;

use clap::{Parser, Subcommand};
use std::path::PathBuf;

#[cfg(feature = "mimalloc")]
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// The index beside the best published ones.
#[derive(Debug, Parser)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Runs one trial in this process and prints its figures as a line of JSON.
    Trial(trial::Trial),
    /// Runs all trials, each in a fresh process, and writes the report.
    Run(run::Run),
    /// Checks that all indexes answer what a naive map says, on small random fleets.
    Agree(agree::Agree),
    /// Makes the report of a run anew from its raw figures.
    Report {
        /// Folder of the run.
        folder: PathBuf,
    },
}

fn main() -> anyhow::Result<()> {
    match Arguments::parse().command {
        Command::Trial(trial) => println!("{}", serde_json::to_string(&trial::trial(&trial)?)?),
        Command::Run(run) => println!("{}", run::run(&run)?.display()),
        Command::Agree(check) => println!("{} answers agree", agree::agree(&check)?),
        Command::Report { folder } => report::write(&folder)?,
    }
    Ok(())
}
