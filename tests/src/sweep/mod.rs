//! A comparison of ways of routing on a workload, in virtual time.
//!
//! - [`job`]: requests by the names of their blocks, generated or of a trace;
//! - [`crate::engine::timed`]: mock engines with time, and the model of their steps (pure);
//! - [`forecast`]: when an engine would put out a first token, for the oracle (pure);
//! - [`router`]: the cores of `router-client` and the index, or the oracle (pure);
//! - [`cluster`]: one run, in which requests arrive whether engines keep up or not (pure);
//! - [`capacity`]: the rate of arrivals that is 100 % of load (pure);
//! - [`figures`]: figures of a run, and over seeds (pure);
//! - [`plan`]: all runs, on several threads;
//! - [`report`], [`chart`]: tables, files and plots;
//! - [`args`]: the command line.
//!
//! What it leaves out: the time of routing itself (microseconds), the network, preemption, tiers below device memory, and
//! the growth of attention's arithmetic with the length of a prompt.

pub mod args;
pub mod capacity;
pub mod chart;
pub mod cluster;
pub mod figures;
pub mod forecast;
pub mod job;
pub mod plan;
pub mod report;
pub mod router;

pub use args::Args;

use anyhow::Result;

/// Runs a sweep and prints what came out.
///
/// # Errors
/// If an option cannot be used, a run fails, or a file cannot be read or written.
pub fn run(args: Args) -> Result<()> {
    let args = args.shortened();
    args.check()?;
    let outcome = plan::run(&args)?;
    print!("{}", report::text(&outcome));
    match &args.out {
        Some(folder) => report::write(&outcome, folder),
        None => Ok(()),
    }
}
