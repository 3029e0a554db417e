use super::{CheckpointArgs, ScaleArgs};
use clap::{Parser, Subcommand};
use std::net::SocketAddr;
use std::path::PathBuf;

/// Asks an indexer-server, and beside it a bare tonic echo with messages of the same sizes.
///
/// Starts both as processes of their own, fills the index, and runs the same load against the two
/// in turn. Needs `indexer-server` in the same folder: build with
/// `cargo build --release --workspace --bins`.
#[derive(Debug, Clone, Parser)]
#[command(name = "load")]
pub struct Args {
    /// What to be; without it, the load generator.
    #[command(subcommand)]
    pub role: Option<Role>,
    /// Rounds of the whole matrix; the report has medians.
    #[arg(long, default_value_t = 5)]
    pub trials: usize,
    /// Number of the first round: even ones ask the echo first, odd ones the index.
    #[arg(long, default_value_t = 0)]
    pub first_trial: usize,
    /// A smaller index, fewer and shorter measurements: to see that it works.
    #[arg(long)]
    pub quick: bool,
    /// Parts to run, of closed, open, offered, ingest and library; all by default.
    #[arg(long, value_delimiter = ',')]
    pub parts: Vec<String>,
    /// Block operations a second that are published beside the questions of part ingest.
    #[arg(long, default_value_t = 500_000)]
    pub ingest_rate: u64,
    /// Where the raw measurements go, a line of JSON each.
    #[arg(long, default_value = "load.jsonl")]
    pub out: PathBuf,
    /// Where the report goes, in Markdown; it is printed as well.
    #[arg(long, default_value = "load.md")]
    pub report: PathBuf,
    /// End with failure if a bar is missed.
    #[arg(long)]
    pub check: bool,
}

/// What other processes of a run are.
#[derive(Debug, Clone, Subcommand)]
pub enum Role {
    /// Makes of raw files what goes into the report of all benches, and prints it as a line of JSON.
    Report {
        /// Their folder.
        folder: PathBuf,
    },
    /// Measures what checkpoints cost, in bytes and ingest, and how fast a killed server is back.
    Checkpoints(CheckpointArgs),
    /// Measures what grows with blocks, workers and models: memory, lookups, checkpoints and start-up.
    Scale(ScaleArgs),
    /// Measures what TLS with client certificates costs the server, beside a plain server in the same run.
    Tls {
        /// Measurements of each server, in turn.
        #[arg(long, default_value_t = 9)]
        trials: usize,
        /// A smaller index and shorter measurements.
        #[arg(long)]
        quick: bool,
    },
    /// The bare echo: says where it listens and serves until its standard input ends.
    Echo,
    /// Publishers of events: publish until standard input ends, then say how much that was.
    Publish {
        /// The server.
        server: SocketAddr,
        /// Block operations a second.
        rate: u64,
    },
}

impl Args {
    /// Whether a part was asked for.
    pub fn has_part(&self, part: &str) -> bool {
        self.parts.is_empty() || self.parts.iter().any(|wanted| wanted == part)
    }
}
