//! `tiers-bench`: the memory tier beside memcpy, the disk tier beside sequential I/O of the same bytes with the same flags,
//! checksums by themselves, and a restart. Figures of one run belong together: the ratios count. See `--help`.

mod blocks;
mod disk;
mod memory;
mod restart;

use anyhow::Result;
use bench_figures::Figure;
use clap::Parser;
use std::path::PathBuf;
use std::process::ExitCode;

/// Measures the storages of the block manager.
#[derive(Debug, Parser)]
struct Args {
    /// Trials of each measure; the medians are printed.
    #[arg(long, default_value_t = 7)]
    trials: usize,
    /// Sizes of blocks, in KiB.
    #[arg(long, value_delimiter = ',', default_value = "1024,2048,4096")]
    block_kib: Vec<usize>,
    /// What is moved in one trial, in MiB.
    #[arg(long, default_value_t = 256)]
    mib: usize,
    /// Threads of the disk's executor.
    #[arg(long, default_value_t = 4)]
    threads: usize,
    /// Where the disk tier lies: a folder of a file system that is to be measured.
    #[arg(long, default_value = ".")]
    folder: PathBuf,
    /// Blocks of the restart.
    #[arg(long, default_value_t = 10_000)]
    restart_blocks: u32,
}

/// Bytes per second of some trials, in GB/s, and how they compare with a baseline of the same trial.
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
