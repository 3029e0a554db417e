use super::{CheckpointArgs, ScaleArgs};
use clap::{Parser, Subcommand};
use std::net::SocketAddr;
use std::path::PathBuf;

/// Sends queries to an indexer-server and, for comparison, to a bare tonic echo with messages of the same sizes.
///
/// Starts both as separate processes, fills the index, and runs the same load against both in turn. Needs
/// `indexer-server` in the same folder: build with `cargo build --release --workspace --bins`.
#[derive(Debug, Clone, Parser)]
#[command(name = "load")]
pub struct Args {
    /// Role of the process; if not set: the load generator.
    #[command(subcommand)]
    pub role: Option<Role>,
    /// Rounds of the complete matrix; the report has medians.
    #[arg(long, default_value_t = 5)]
    pub trials: usize,
    /// Number of the first round. Even rounds query the echo first, odd rounds the index.
    #[arg(long, default_value_t = 0)]
    pub first_trial: usize,
    /// Quick check that everything works: a smaller index, fewer and shorter measurements.
    #[arg(long)]
    pub quick: bool,
    /// Parts to run: closed, open, offered, ingest and library. If not set: all.
    #[arg(long, value_delimiter = ',')]
    pub parts: Vec<String>,
    /// Block operations per second that are published during the queries of part ingest.
    #[arg(long, default_value_t = 500_000)]
    pub ingest_rate: u64,
    /// File for the raw measurements, one line of JSON each.
    #[arg(long, default_value = "load.jsonl")]
    pub out: PathBuf,
    /// File for the report in Markdown, which is also printed.
    #[arg(long, default_value = "load.md")]
    pub report: PathBuf,
    /// Exit with failure if a target is missed.
    #[arg(long)]
    pub check: bool,
}

/// Roles of other processes of a run.
#[derive(Debug, Clone, Subcommand)]
pub enum Role {
    /// Creates the part for the report of all benches from raw files, and prints it as a line of JSON.
    Report {
        /// Folder of the raw files.
        folder: PathBuf,
    },
    /// Measures the cost of checkpoints, in bytes and ingest, and the restart time of a killed server.
    Checkpoints(CheckpointArgs),
    /// Measures growth with blocks, workers and models: memory, lookups, checkpoints and start-up.
    Scale(ScaleArgs),
    /// Measures the server's cost of TLS with client certificates, compared with a plain server in the same run.
    Tls {
        /// Number of measurements of each server, in turn.
        #[arg(long, default_value_t = 9)]
        trials: usize,
        /// Use a smaller index and shorter measurements.
        #[arg(long)]
        quick: bool,
    },
    /// Runs the bare echo: prints its address and serves until its standard input ends.
    Echo,
    /// Runs publishers of events until standard input ends, then prints how much they published.
    Publish {
        /// Address of the server.
        server: SocketAddr,
        /// Block operations per second.
        rate: u64,
    },
}

impl Args {
    /// Whether a part is to be run.
    pub fn has_part(&self, part: &str) -> bool {
        self.parts.is_empty() || self.parts.iter().any(|wanted| wanted == part)
    }
}
