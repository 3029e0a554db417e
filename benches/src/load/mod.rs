//! The load generator: sends queries to a real indexer-server and, in the same run with the same message sizes, to a
//! bare tonic echo. Both share the transport; the difference is Kvasir's own cost.

mod args;
mod bars;
mod check;
mod checkpoints;
pub(crate) mod child;
pub(crate) mod closed;
pub(crate) mod echo;
pub(crate) mod fleet;
mod ingest;
mod library;
pub(crate) mod open;
mod plots;
pub(crate) mod raw;
mod record;
mod report;
mod run;
mod scale;
mod scale_report;
mod shapes;
mod tls;

pub use args::{Args, Role};
pub use checkpoints::{CheckpointArgs, run as run_checkpoints};
pub use run::run;
pub use scale::{ScaleArgs, run as run_scale};
pub use tls::run as run_tls;

use anyhow::Result;
use bench_figures::print_part;
use std::net::SocketAddr;
use std::path::Path;

/// Prints the results of a folder's raw files, for the report of all benches.
pub fn report(folder: &Path) -> Result<()> {
    Ok(print_part(folder, report::part)?)
}

/// Runs the echo: prints its address, and serves until standard input ends.
pub async fn echo() -> Result<()> {
    echo::serve(|address| println!("{address}"), child::stdin_ended()).await
}

/// Runs the publishers: prints that they begin, and publishes until standard input ends.
pub async fn publish(server: SocketAddr, rate: u64) -> Result<()> {
    ingest::publish(server, rate, || println!("ready")).await?;
    println!("done");
    Ok(())
}
