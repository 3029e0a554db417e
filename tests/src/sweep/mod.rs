//! A comparison of ways of routing on a workload, in virtual time; one point of it again with processes. Its engines, and
//! their model of time, are those of [`crate::engine::timed`].
//!
//! - [`job`]: requests by the names of their blocks, generated or of a trace;
//! - [`way`], [`options`], [`change`]: ways of placing requests, engines, and changes to both (pure);
//! - [`forecast`]: when an engine would put out a first token, for the oracle (pure);
//! - [`router`], `replica`, [`feed`]: the cores of `router-client` and the index, or the oracle (pure);
//! - [`cluster`]: one run, in which requests arrive whether engines keep up or not (pure);
//! - [`capacity`]: the rate of arrivals that is 100 % of load (pure);
//! - [`figures`]: figures of a run, and over seeds (pure);
//! - [`plan`], [`what_if`]: all runs, on several threads;
//! - [`processes`]: one point again with processes in real time;
//! - [`report`], [`chart`], [`bars`]: tables, files and plots;
//! - [`duel`]: kv against round-robin, for the demo;
//! - [`args`]: the command line.
//!
//! What it leaves out: the time of routing itself (microseconds), the network but for transfers of prompts and messages
//! between routers, preemption, and the growth of attention's arithmetic with the length of a prompt.

pub mod args;
pub mod bars;
pub mod capacity;
pub mod change;
pub mod chart;
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
    /// All runs are done.
    Complete,
    /// It was interrupted while processes ran, and they have ended.
    Interrupted,
}

/// Runs a sweep and prints what came out.
///
/// # Errors
/// If an option cannot be used, a run fails, a file cannot be read or written, or processes and virtual time do not agree.
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
