//! A fleet runs for a long time while one fault follows the other: nothing is lost, no answer is wrong, no query fails, and
//! memory and open files do not grow.
//!
//! 200 mock engines feed two indexes, most of them directly, some by agents over gRPC, some by agents over JetStream. All
//! connections of gRPC and NATS have TLS. Each index has a network namespace of its own, so that it can be cut off.
//!
//! `KVASIR_SOAK_SECONDS` is the length (180 by default; a round of faults that has begun is finished), `KVASIR_SOAK_REPORT` a
//! folder for the report, `KVASIR_SEED` the seed. `scripts/soak` runs half an hour.

mod checks;
mod engines;
mod faults;
mod fleet;
mod load;
mod namespaces;
mod report;
mod usage;

use anyhow::{Context, Result};
use fleet::Fleet;
use kvasir_tests::nats;
use report::Report;
use std::env;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Runtime;
use tokio_util::sync::CancellationToken;

/// Length of the run in seconds, unless `KVASIR_SOAK_SECONDS` is set.
const SECONDS: u64 = 180;
/// Tasks that check answers.
const CHECKERS: u64 = 3;

#[test]
fn a_fleet_outlasts_faults() -> Result<()> {
    let runtime = Runtime::new()?;
    if let Some(folder) = namespaces::folder() {
        return runtime.block_on(run(&folder));
    }
    // It is downloaded at its first use, which is not possible inside.
    runtime.block_on(nats::binary())?;
    namespaces::run_inside("a_fleet_outlasts_faults")
}

/// A number from the environment.
fn number(name: &str, default: u64) -> Result<u64> {
    let Some(text) = env::var_os(name) else { return Ok(default) };
    let number = text.to_str().and_then(|text| text.parse().ok());
    number.with_context(|| format!("{name} is {text:?}, not a number"))
}

async fn run(folder: &Path) -> Result<()> {
    // Engines and clients of this process need a socket for each index.
    kvasir_process::descriptors::raise_limit()?;
    let seed = number("KVASIR_SEED", 1)?;
    let length = Duration::from_secs(number("KVASIR_SOAK_SECONDS", SECONDS)?);
    println!("seed {seed}, {length:?}");
    let fleet = Arc::new(Fleet::start(folder).await.context("start the fleet")?);
    let report = Arc::new(Report::new(length));
    let stop = CancellationToken::new();
    let mut tasks = load::start(&fleet, &report, &stop, seed);
    for number in 0..CHECKERS {
        let random = engines::random(seed, 300 + number);
        tasks.spawn(checks::run(Arc::clone(&fleet), Arc::clone(&report), stop.clone(), random));
    }
    tasks.spawn(usage::watch(Arc::clone(&fleet), Arc::clone(&report), stop.clone()));
    let ended = tokio::select! {
        outcome = faults::run(&fleet, &report, length, seed) => outcome,
        // These end by themselves only if they fail.
        Some(outcome) = tasks.join_next() => outcome.context("a task panicked").flatten(),
    };
    stop.cancel();
    let mut outcome = ended;
    while let Some(ended) = tasks.join_next().await {
        outcome = outcome.and(ended.context("a task panicked").flatten());
    }
    let outcome = match outcome {
        Ok(()) => checks::compare_all(&fleet).await.map(drop).context("at the end"),
        Err(error) => Err(error),
    };
    report.second_replica(fleet.client.counts().first());
    if let Some(folder) = env::var_os("KVASIR_SOAK_REPORT").map(PathBuf::from) {
        report.write(&folder)?;
    }
    println!("{}", report.text());
    let outcome = outcome.and_then(|()| report.check());
    let programs = if outcome.is_err() { fleet.outputs().await } else { String::new() };
    fleet.stop().await;
    outcome.context(programs)
}
