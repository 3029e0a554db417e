//! Compares `indexer-server` with `python -m dynamo.indexer`, on the same streams.
//!
//! A trial starts one server and, in a separate process, 64 publishers with libzmq sockets. `bench-report` runs trials
//! of the two servers in turn. All measurements are external: CPU time of the server's processes, wall time, resident
//! memory. Every answer and every dump is checked.

mod freshness;
mod measure;
mod process;
mod publish;
mod report;
mod stream;
mod subject;
mod trial;

use crate::freshness::RATES;
use crate::stream::{EVENT_BLOCKS, Stream, WORKERS};
use crate::subject::{Dynamo, Kvasir, Programs};
use crate::trial::Plan;
use anyhow::{Context, Result, bail};
use clap::{Args, Parser, Subcommand, ValueEnum};
use std::fs;
use std::path::PathBuf;
use tokio::runtime::Builder;
use tokio::select;
use tokio::signal::unix::{SignalKind, signal};

/// Compares indexer-server with Dynamo's standalone indexer, on the same streams.
#[derive(Debug, Parser)]
struct Options {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Measures one server once and prints its results, one line of JSON each.
    Trial(Trial),
    /// The publishers; started by `trial`.
    #[command(hide = true)]
    Publish(Publish),
    /// Creates the part for the report from trials' raw files, and prints it as a line of JSON.
    Report {
        /// Folder of the raw files.
        folder: PathBuf,
    },
}

/// A server under test.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Name {
    /// `python -m dynamo.indexer`.
    Dynamo,
    /// Kvasir's indexer-server.
    Kvasir,
}

#[derive(Debug, Args)]
struct Trial {
    /// The server to measure.
    #[arg(long, value_enum)]
    server: Name,
    /// Path of indexer-server (release build).
    #[arg(long, value_name = "PATH")]
    indexer_server: PathBuf,
    /// Python interpreter that `setup` has created. Required only for Dynamo's indexer.
    #[arg(long, value_name = "PATH", default_value = "python3")]
    dynamo_python: PathBuf,
    /// Folder for the server's log.
    #[arg(long, value_name = "FOLDER")]
    logs: PathBuf,
    /// Number of the trial.
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    trial: usize,
    /// Number of (worker, block) pairs to store; a multiple of 16.
    #[arg(long, value_name = "COUNT", default_value_t = 2_000_000)]
    pairs: u64,
    /// Number of workers, with one publisher each. With another number than the default, only the ingest is measured.
    #[arg(long, value_name = "COUNT", default_value_t = WORKERS)]
    publishers: usize,
    /// Number of queries in each series.
    #[arg(long, value_name = "COUNT", default_value_t = 3_000)]
    requests: usize,
    /// Rates of the background load while staleness is measured, in blocks stored and removed per second.
    #[arg(long, value_name = "RATES", value_delimiter = ',', default_values_t = RATES)]
    rates: Vec<u64>,
    /// Quick run with a tenth of the pairs and of the queries.
    #[arg(long)]
    quick: bool,
}

#[derive(Debug, Args)]
struct Publish {
    #[arg(long)]
    events: u64,
    #[arg(long)]
    workers: usize,
}

fn main() -> Result<()> {
    match Options::parse().command {
        Command::Publish(Publish { events, workers }) => {
            publish::publish(&Stream::new(events, workers))
        }
        Command::Report { folder } => Ok(bench_figures::print_part(&folder, report::part)?),
        Command::Trial(options) => {
            // One thread: it starts the server and is its only client.
            let runtime = Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(async {
                let mut terminated = signal(SignalKind::terminate())?;
                let mut interrupted = signal(SignalKind::interrupt())?;
                // Dropping a branch ends its processes.
                select! {
                    done = run(options) => done,
                    _ = terminated.recv() => bail!("terminated"),
                    _ = interrupted.recv() => bail!("interrupted"),
                }
            })
        }
    }
}

async fn run(options: Trial) -> Result<()> {
    let share = if options.quick { 10 } else { 1 };
    let events = options.pairs / EVENT_BLOCKS / share;
    let stream = Stream::new(events, options.publishers);
    fs::create_dir_all(&options.logs)
        .with_context(|| format!("create {}", options.logs.display()))?;
    let plan = Plan {
        stream,
        requests: options.requests / usize::try_from(share)?,
        rates: options.rates,
        programs: Programs {
            indexer_server: options.indexer_server,
            dynamo_python: options.dynamo_python,
        },
        logs: options.logs,
    };
    match options.server {
        Name::Dynamo => trial::run::<Dynamo>(&plan, options.trial).await,
        Name::Kvasir => trial::run::<Kvasir>(&plan, options.trial).await,
    }
}
