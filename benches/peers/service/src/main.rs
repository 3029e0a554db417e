//! `indexer-server` beside `python -m dynamo.indexer`, on the same streams.
//!
//! Each trial starts one server and, in a process of its own, 64 publishers with libzmq sockets;
//! trials of the two servers take turns. Measured from outside: CPU time of the server's processes,
//! wall time, resident memory. Every answer and every dump is checked.

mod measure;
mod process;
mod publish;
mod stream;
mod subject;
mod table;
mod trial;

use crate::{
    measure::Measurements,
    stream::{EVENT_BLOCKS, Stream},
    subject::{Dynamo, Kvasir, Programs},
    trial::Plan,
};
use anyhow::{Context, Result, bail};
use clap::{Args, Parser, Subcommand};
use std::{fs, path::PathBuf};
use tokio::{
    runtime::Builder,
    select,
    signal::unix::{SignalKind, signal},
};

/// indexer-server beside Dynamo's standalone indexer, on the same streams.
#[derive(Debug, Parser)]
struct Options {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Measures both servers.
    Run(Run),
    /// The publishers; started by `run`.
    #[command(hide = true)]
    Publish(Publish),
}

#[derive(Debug, Args)]
struct Run {
    /// Release build of indexer-server.
    #[arg(long, value_name = "PATH")]
    indexer_server: PathBuf,
    /// The Python that `setup` made.
    #[arg(long, value_name = "PATH")]
    dynamo_python: PathBuf,
    /// `--threads` of Dynamo's indexer.
    #[arg(long, value_name = "COUNT", default_value_t = 2)]
    dynamo_threads: usize,
    /// Folder for results (service.jsonl, service.md) and the servers' logs.
    #[arg(long, value_name = "FOLDER", default_value = "results", overrides_with = "out")]
    out: PathBuf,
    /// Trials of each server.
    #[arg(long, value_name = "COUNT", default_value_t = 3)]
    trials: usize,
    /// (worker, block) pairs to store; a multiple of 16.
    #[arg(long, value_name = "COUNT", default_value_t = 2_000_000)]
    pairs: u64,
    /// Workers, with a publisher each.
    #[arg(long, value_name = "COUNT", default_value_t = 64)]
    workers: usize,
    /// Queries in each series.
    #[arg(long, value_name = "COUNT", default_value_t = 3_000)]
    requests: usize,
    /// Seed of everything random.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// A tenth of the pairs and of the queries.
    #[arg(long)]
    quick: bool,
    /// This server only: dynamo or kvasir.
    #[arg(long, value_name = "NAME", value_parser = ["dynamo", "kvasir"])]
    only: Option<String>,
}

#[derive(Debug, Args)]
struct Publish {
    #[arg(long)]
    seed: u64,
    #[arg(long)]
    workers: usize,
    #[arg(long)]
    events: u64,
}

fn main() -> Result<()> {
    match Options::parse().command {
        Command::Publish(Publish { seed, workers, events }) => {
            publish::publish(&Stream::new(seed, workers, events))
        }
        Command::Run(options) => {
            // One thread: it starts the servers and is their only client.
            let runtime = Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(async {
                let mut terminated = signal(SignalKind::terminate())?;
                let mut interrupted = signal(SignalKind::interrupt())?;
                // Whatever is dropped here ends its process.
                select! {
                    done = run(options) => done,
                    _ = terminated.recv() => bail!("terminated"),
                    _ = interrupted.recv() => bail!("interrupted"),
                }
            })
        }
    }
}

async fn run(options: Run) -> Result<()> {
    let share = if options.quick { 10 } else { 1 };
    let events = options.pairs / EVENT_BLOCKS / share;
    let stream = Stream::new(options.seed, options.workers, events);
    let plan = Plan {
        stream,
        seed: options.seed,
        requests: options.requests / usize::try_from(share)?,
        programs: Programs {
            indexer_server: options.indexer_server,
            dynamo_python: options.dynamo_python,
            dynamo_threads: options.dynamo_threads,
        },
        logs: options.out.clone(),
    };
    fs::create_dir_all(&options.out)
        .with_context(|| format!("create {}", options.out.display()))?;
    let mut taken = Measurements::new(fs::File::create(options.out.join("service.jsonl"))?);
    let wanted = |name: &str| options.only.as_deref().is_none_or(|only| only == name);
    for trial in 0..options.trials {
        if wanted("dynamo") {
            trial::run::<Dynamo>(&plan, trial, &mut taken).await?;
        }
        if wanted("kvasir") {
            trial::run::<Kvasir>(&plan, trial, &mut taken).await?;
        }
    }
    let table = table::markdown(&taken);
    fs::write(options.out.join("service.md"), &table)?;
    println!("{table}");
    Ok(())
}
