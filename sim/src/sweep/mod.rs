//! Compares routing policies on a workload in virtual time, and repeats one point with processes. The engines and their
//! model of time are those of [`crate::engine::timed`].
//!
//! - [`job`]: requests in terms of block names, generated or from a trace;
//! - [`way`], [`options`], [`change`]: routing, engines, and changes to both (pure);
//! - [`forecast`]: forecasts an engine's time to the first token, for the oracle (pure);
//! - [`router`], `replica`, [`feed`]: the cores of `router-client` and the index, or the oracle (pure);
//! - [`cluster`]: one run, in which requests arrive whether engines keep up or not (pure);
//! - [`capacity`]: the arrival rate of 100 % load (pure);
//! - [`figures`]: metrics of a run, and over seeds (pure);
//! - [`plan`], [`what_if`]: all runs, on several threads;
//! - [`processes`]: repeats one point with processes in real time;
//! - [`report`]: tables, files and plots;
//! - [`duel`]: compares kv and round-robin, for the demo;
//! - [`args`]: the command line.
//!
//! The sweep omits the time of routing itself (microseconds), preemption, and the growth of attention's arithmetic with
//! the length of a prompt. Of the network, it includes only transfers of prompts and messages between routers.

pub mod args;
pub mod capacity;
pub mod change;
pub mod cluster;
pub mod duel;
pub mod feed;
pub mod figures;
pub mod forecast;
pub mod job;
pub mod options;
pub mod plan;
pub mod processes;
mod replica;
pub mod report;
pub mod router;
pub mod way;
pub mod what_if;

pub use args::Args;

use anyhow::Result;

/// How a sweep ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// All runs are complete.
    Complete,
    /// The sweep was interrupted while processes ran; these have ended.
    Interrupted,
}

/// Runs a sweep and prints the results.
///
/// # Errors
/// If an option is invalid, a run fails, a file cannot be read or written, or processes and virtual time disagree.
pub fn run(args: Args) -> Result<Ending> {
    let args = args.shortened();
    args.check()?;
    for source in args.sources()? {
        if let Some(load) = args.processes {
            let Some(agreement) = processes::run(&args, &source, load)? else {
                return Ok(Ending::Interrupted);
            };
            print!("{}", agreement.text());
            agreement.check()?;
            continue;
        }
        if !args.what_if.is_empty() {
            let answers = what_if::run(&args, &source)?;
            print!("{}", what_if::text(&answers));
            if let Some(folder) = &args.out {
                what_if::write(&answers, folder)?;
            }
            continue;
        }
        let outcome = plan::run(&args, &source)?;
        print!("{}", report::text(&outcome));
        if let Some(folder) = &args.out {
            report::write(&outcome, folder)?;
        }
    }
    Ok(Ending::Complete)
}
