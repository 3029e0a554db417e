//! `tiers-bench`: compares the memory tier with memcpy and the disk tier with sequential I/O of the same bytes and
//! flags. Also measures checksums alone, and a restart. Only ratios within one run are comparable. See `--help`.

mod blocks;
mod disk;
mod memory;
mod restart;

use anyhow::Result;
use bench_figures::Figure;
use clap::Parser;
use std::path::PathBuf;
use std::process::ExitCode;

/// Measures the storage tiers of the block manager.
#[derive(Debug, Parser)]
struct Args {
    /// Number of trials of each measure; the medians are printed.
    #[arg(long, default_value_t = 7)]
    trials: usize,
    /// Sizes of blocks, in KiB.
    #[arg(long, value_delimiter = ',', default_value = "1024,2048,4096")]
    block_kib: Vec<usize>,
    /// Amount of data moved in one trial, in MiB.
    #[arg(long, default_value_t = 256)]
    mib: usize,
    /// Number of threads of the disk's executor.
    #[arg(long, default_value_t = 4)]
    threads: usize,
    /// Folder of the disk tier, on the file system to measure.
    #[arg(long, default_value = ".")]
    folder: PathBuf,
    /// Number of blocks in the restart.
    #[arg(long, default_value_t = 10_000)]
    restart_blocks: u32,
}

/// Speeds of some trials, in GB/s, and their ratio to a baseline of the same trial.
fn line(what: &str, speeds: &[f64], baseline: Option<&[f64]>) {
    let Some(figure) = Figure::of(speeds.iter().copied()) else { return };
    let ratio = baseline.and_then(|baseline| {
        Figure::of(speeds.iter().zip(baseline).map(|(speed, baseline)| speed / baseline))
    });
    let ratio = ratio.map_or(String::new(), |at| {
        format!("  ratio {:.2} (spread {:.0} %)", at.median, at.spread * 100.0)
    });
    let Figure { median, spread, .. } = figure;
    println!("{what:<46} {:>7.2} GB/s (spread {:>3.0} %){ratio}", median / 1e9, spread * 100.0);
}

fn run(args: &Args) -> Result<()> {
    println!("{} trials of {} MiB each, medians", args.trials, args.mib);
    for kib in &args.block_kib {
        println!("\nblocks of {kib} KiB");
        memory::measure(args, kib << 10)?;
        disk::measure(args, kib << 10)?;
    }
    restart::measure(args)
}

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("tiers-bench: {error:#}");
            ExitCode::FAILURE
        }
    }
}
