//! Measures the agent end to end: frames of an engine's publisher in, gRPC out. Results are blocks per second of its
//! processor time, added latency and memory, with the machine's cost of the indispensable parts for comparison.

mod cores;
mod freshness;
mod index;
mod latency;
mod measures;
mod publisher;
mod report;
mod stream;
mod way;

use anyhow::Result;
use bench_figures::print_part;
use clap::{Parser, Subcommand};
use cores::Cores;
use report::Record;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::PathBuf;
use std::time::Duration;
use tokio::runtime::{self, Runtime};
use way::To;

/// Feeds a real kvbm-agent from an engine's publisher, in vLLM's frames, and receives its events like an index.
///
/// Needs `kvbm-agent` and `indexer-server` in the same folder: build with
/// `cargo build --release --workspace --bins`.
#[derive(Debug, Clone, Parser)]
#[command(name = "agent")]
pub struct Args {
    /// Action; if not set: measure.
    #[command(subcommand)]
    pub role: Option<Role>,
    /// Rounds of all measurements; the report has medians.
    #[arg(long, default_value_t = 5)]
    pub trials: usize,
    /// Number of the first round.
    #[arg(long, default_value_t = 0)]
    pub first_trial: usize,
    /// Quick check that everything works: fewer blocks, shorter measurements, one round.
    #[arg(long)]
    pub quick: bool,
    /// Parts to run: throughput, disk, latency, freshness, memory and limits. If not set: all.
    #[arg(long, value_delimiter = ',')]
    pub parts: Vec<String>,
    /// Let the agent run on all processors. If not set: the agent has its own processor, if there are at least two.
    #[arg(long)]
    pub no_pin: bool,
    /// File for the raw measurements, one line of JSON each.
    #[arg(long, default_value = "agent.jsonl")]
    pub out: PathBuf,
    /// File for the report in Markdown, which is also printed.
    #[arg(long, default_value = "agent.md")]
    pub report: PathBuf,
    /// Exit with failure if a target is missed.
    #[arg(long)]
    pub check: bool,
}

/// Actions other than measuring.
#[derive(Debug, Clone, Subcommand)]
pub enum Role {
    /// Creates the part for the report of all benches from raw files, and prints it as a line of JSON.
    Report {
        /// Folder of the raw files.
        folder: PathBuf,
    },
}

/// Stored events of 16 blocks per batch, one throughput case each.
const BATCH_EVENTS: [u64; 2] = [1, 32];
/// Blocks stored and removed per second, for latency.
const RATE: f64 = 100_000.0;

/// Maximum number of held blocks while freshness is measured: filling up takes longer than the measurement.
const FRESHNESS_HELD: u64 = 200_000;

/// Size of the measurements.
struct Size {
    trials: usize,
    /// Duration of each measurement.
    length: Duration,
    /// Number of blocks that the engine has, for throughput and latency.
    held: u64,
    /// Numbers of held blocks at which memory is measured, one case each.
    memory_held: &'static [u64],
}

impl Args {
    fn size(&self) -> Size {
        if self.quick {
            let length = Duration::from_millis(500);
            return Size { trials: 1, length, held: 50_000, memory_held: &[200_000] };
        }
        let length = Duration::from_secs(4);
        let memory_held = &[1_000_000, 4_000_000];
        Size { trials: self.trials, length, held: 1_000_000, memory_held }
    }

    fn has_part(&self, part: &str) -> bool {
        self.parts.is_empty() || self.parts.iter().any(|wanted| wanted == part)
    }
}

/// Executes the requested action. Returns true if all targets are met, or if it was not a measurement.
pub fn run(args: Args) -> Result<bool> {
    if let Some(Role::Report { folder }) = &args.role {
        print_part(folder, report::part)?;
        return Ok(true);
    }
    let mut records = Records::create(&args)?;
    if args.has_part("freshness") {
        // In production, index, agent and engine each have their own machine. So none has its own processor here.
        runtime()?.block_on(measure_freshness(&args, &mut records))?;
    }
    let cores = Cores::split(!args.no_pin)?;
    cores.enter_others()?;
    runtime()?.block_on(measure(&args, &cores, &mut records))?;
    let (text, met) = report::part(&records.all, Vec::new()).report();
    std::fs::write(&args.report, &text)?;
    println!("\n{text}");
    Ok(met)
}

/// A runtime whose threads inherit the calling thread's processors.
fn runtime() -> Result<Runtime> {
    Ok(runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?)
}

/// Measurements, in memory and in a file.
struct Records {
    all: Vec<Record>,
    out: BufWriter<File>,
}

impl Records {
    fn create(args: &Args) -> Result<Self> {
        Ok(Self { all: Vec::new(), out: BufWriter::new(File::create(&args.out)?) })
    }

    fn add(&mut self, record: Record, trial: usize) -> Result<()> {
        let record = Record { trial, ..record };
        println!("{record}");
        serde_json::to_writer(&mut self.out, &record)?;
        self.out.write_all(b"\n")?;
        self.out.flush()?;
        self.all.push(record);
        Ok(())
    }
}

async fn measure_freshness(args: &Args, records: &mut Records) -> Result<()> {
    let (cores, Size { trials, length, held, .. }) = (Cores::split(false)?, args.size());
    for trial in (args.first_trial..).take(trials) {
        for to in freshness::WAYS {
            for (rate, batch_events) in freshness::RATES {
                let case = (to, rate, batch_events, held.min(FRESHNESS_HELD));
                records.add(freshness::freshness(case, length, &cores).await?, trial)?;
            }
        }
    }
    Ok(())
}

async fn measure(args: &Args, cores: &Cores, records: &mut Records) -> Result<()> {
    println!("{}", cores.text());
    let mut keep = |record, trial| records.add(record, trial);
    let Size { trials, length, held, memory_held } = args.size();
    for trial in (args.first_trial..).take(trials) {
        if args.has_part("throughput") {
            for events in BATCH_EVENTS {
                for to in [To::Bare, To::Server] {
                    let case = (to, events, held);
                    keep(measures::throughput(case, length, cores).await?, trial)?;
                }
            }
        }
        if args.has_part("disk") {
            for events in BATCH_EVENTS {
                let case = (To::BareFromDisk, events, held);
                keep(measures::throughput(case, length, cores).await?, trial)?;
            }
        }
        if args.has_part("latency") {
            let case = (RATE, 1, held);
            keep(latency::latency(case, length, cores).await?, trial)?;
        }
        if args.has_part("memory") {
            for &held in memory_held {
                keep(measures::memory(held, cores).await?, trial)?;
            }
        }
        if args.has_part("limits") {
            for events in BATCH_EVENTS {
                keep(measures::limits(events, held), trial)?;
            }
        }
    }
    Ok(())
}
