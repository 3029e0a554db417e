//! The agent, end to end: frames of an engine's publisher in, gRPC out. Blocks per second of its processor time,
//! the latency it adds, the memory it takes; and beside them what the machine takes for parts of it.

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

/// Feeds a real kvbm-agent from an engine's publisher, in vLLM's frames, and takes what it sends to an index.
///
/// Needs `kvbm-agent` and `indexer-server` in the same folder: build with
/// `cargo build --release --workspace --bins`.
#[derive(Debug, Clone, Parser)]
#[command(name = "agent")]
pub struct Args {
    /// What to do; without it, measure.
    #[command(subcommand)]
    pub role: Option<Role>,
    /// Rounds of everything; the report has medians.
    #[arg(long, default_value_t = 5)]
    pub trials: usize,
    /// Number of the first round.
    #[arg(long, default_value_t = 0)]
    pub first_trial: usize,
    /// Fewer blocks and shorter measurements, once: to see that it works.
    #[arg(long)]
    pub quick: bool,
    /// Parts to run, of throughput, disk, latency, freshness, memory and limits; all by default.
    #[arg(long, value_delimiter = ',')]
    pub parts: Vec<String>,
    /// Let the agent run on all processors; else it has one for itself, where there are two.
    #[arg(long)]
    pub no_pin: bool,
    /// Where the raw measurements go, a line of JSON each.
    #[arg(long, default_value = "agent.jsonl")]
    pub out: PathBuf,
    /// Where the report goes, in Markdown; it is printed as well.
    #[arg(long, default_value = "agent.md")]
    pub report: PathBuf,
    /// End with failure if a bar is missed.
    #[arg(long)]
    pub check: bool,
}

/// What else there is to do.
#[derive(Debug, Clone, Subcommand)]
pub enum Role {
    /// Makes of raw files what goes into the report of all benches, and prints it as a line of JSON.
    Report {
        /// Their folder.
        folder: PathBuf,
    },
}

/// Stored events of 16 blocks in each batch, one throughput case each.
const BATCH_EVENTS: [u64; 2] = [1, 32];
/// Blocks stored and removed a second, for latency.
const RATE: f64 = 100_000.0;

/// Blocks held at most while freshness is measured: filling up takes longer than the measurement.
const FRESHNESS_HELD: u64 = 200_000;

/// How much is measured.
struct Size {
    trials: usize,
    /// Length of each measurement.
    length: Duration,
    /// Blocks that the engine holds, for throughput and latency.
    held: u64,
    /// Blocks that are held when memory is looked at, one case each.
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

/// Does what is asked for; true if all bars are met, or it was no measurement.
pub fn run(args: Args) -> Result<bool> {
    if let Some(Role::Report { folder }) = &args.role {
        print_part(folder, report::part)?;
        return Ok(true);
    }
    let mut records = Records::create(&args)?;
    if args.has_part("freshness") {
        // Index, agent and engine have a machine each where people use them: none gets a processor of its own here.
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

/// Its threads run where the thread may that calls this.
fn runtime() -> Result<Runtime> {
    Ok(runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?)
}

/// What was measured, in memory and in a file.
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
