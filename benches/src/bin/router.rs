//! `router`: decisions of the router, in the library and as a process; see `--help`.

use clap::{Parser, Subcommand};
use kvasir_benches::{load, router};
use std::process::ExitCode;

/// The router's own allocator.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Measures what a decision of the router takes beside the call of the index, and how many decisions the process makes in
/// a second of processor time, beside a bare tonic echo of the same run.
#[derive(Debug, Parser)]
struct Args {
    /// Seconds for each measurement.
    #[arg(long, default_value_t = 5)]
    seconds: u64,
    #[command(subcommand)]
    role: Option<Role>,
}

#[derive(Debug, Clone, Subcommand)]
enum Role {
    /// The bare echo; started by the bench itself.
    #[command(hide = true)]
    Echo,
}

#[tokio::main]
async fn main() -> ExitCode {
    let Args { seconds, role } = Args::parse();
    let outcome = match role {
        Some(Role::Echo) => load::echo().await,
        None => router::run(seconds).await,
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("router: {error:#}");
            ExitCode::FAILURE
        }
    }
}
