//! `router`: measures decisions of the router, in the library and as a process; see `--help`.

use clap::{Parser, Subcommand};
use kvasir_benches::{load, router};
use std::process::ExitCode;

/// The router's allocator.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Measures the time of a router's decision in addition to the call of the index, and how many decisions the process
/// makes per second of processor time, compared with a bare tonic echo in the same run.
#[derive(Debug, Parser)]
struct Args {
    /// Duration of each measurement, in seconds.
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
