//! Compares the index with the best published ones. `benches/README.md` explains how to run it and read the results.

mod agree;
mod indexes;
mod line;
mod measures;
mod meter;
mod plan;
mod random;
mod report;
mod samples;
mod trial;
mod workload;

use clap::{Parser, Subcommand};
use serde::Serialize;
use std::path::PathBuf;

#[cfg(feature = "mimalloc")]
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Compares the index with the best published ones.
#[derive(Debug, Parser)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Runs one trial in this process and prints its figures as a line of JSON.
    Trial(trial::Trial),
    /// Prints the trials of a run, one line of JSON each; `bench-report` runs them.
    Plan(plan::Plan),
    /// Checks on small random fleets that all indexes answer like a naive map.
    Agree(agree::Agree),
    /// Creates the part for the report from trials' raw files, and prints it as a line of JSON.
    Report {
        /// Folder of the raw files.
        folder: PathBuf,
        /// Whether the run was a quick run.
        #[arg(long)]
        quick: bool,
    },
}

fn main() -> anyhow::Result<()> {
    match Arguments::parse().command {
        Command::Trial(trial) => print(&trial::trial(&trial)?),
        Command::Plan(plan) => plan::plan(&plan)?.iter().try_for_each(print),
        Command::Agree(check) => {
            println!("{} answers agree", agree::agree(&check)?);
            Ok(())
        }
        Command::Report { folder, quick } => {
            let size = plan::Size::new(quick);
            let part = |records: &[_], incidents| report::part(records, incidents, size);
            Ok(bench_figures::print_part(&folder, part)?)
        }
    }
}

fn print(line: &impl Serialize) -> anyhow::Result<()> {
    println!("{}", serde_json::to_string(line)?);
    Ok(())
}
