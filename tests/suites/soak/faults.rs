//! One fault after the other, and pauses in which everything must be right again.

use super::checks;
use super::engines::{self, Way};
use super::fleet::{Fleet, PATIENCE};
use super::namespaces::Cut;
use super::report::Report;
use anyhow::{Context, Result, ensure};
use rand::Rng;
use rand::seq::SliceRandom;
use rand_chacha::ChaCha8Rng;
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// Time before the first fault: the engines' caches fill meanwhile.
const WARM_UP: Duration = Duration::from_secs(20);
/// Time between two faults, in which the client of both indexes must reach both all the time.
const CALM: Duration = Duration::from_secs(5);
/// Time of a short cut, which connections survive.
const SHORT_CUT: Duration = Duration::from_secs(5);
/// Time of a long cut, longer than the heartbeats of ZMQ (30 s) and of gRPC (20 s): both ends give their connections up.
const LONG_CUT: Duration = Duration::from_secs(36);
/// Engines that start anew together.
const ENGINES: usize = 20;
/// Batches that an engine does not send.
const DROPPED_BATCHES: u64 = 5;
/// The index that is never killed, so that its memory can be watched.
const WATCHED: usize = 1;

/// What goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    KillIndex,
    /// An index is cut off for long. Meanwhile, engines start anew and drop batches.
    CutOffLong,
    CutOffShort,
    KillBroker,
    KillAgents,
    RotateCertificates,
    RestartEngines,
    DropBatches,
}

const ALL: [Fault; 8] = [
    Fault::KillIndex,
    Fault::CutOffLong,
    Fault::CutOffShort,
    Fault::KillBroker,
    Fault::KillAgents,
    Fault::RotateCertificates,
    Fault::RestartEngines,
    Fault::DropBatches,
];

/// Causes faults, all kinds in turn in an order of chance, until the time is over. After each round of all kinds, the
/// indexes must equal the engines.
pub async fn run(fleet: &Fleet, report: &Report, length: Duration, seed: u64) -> Result<()> {
    let mut random = engines::random(seed, 400);
    let deadline = Instant::now() + length;
    sleep(WARM_UP).await;
    while Instant::now() < deadline {
        let mut order = ALL;
        order.shuffle(&mut random);
        for fault in order {
            let name = format!("{fault:?}");
            report.begin(&name);
            cause(fleet, fault, &mut random).await.with_context(|| name.clone())?;
            report.end();
            calm(fleet).await.with_context(|| name.clone())?;
            println!("{}", report.line(&name));
        }
        report.compared(checks::compare_all(fleet).await?);
    }
    Ok(())
}

/// Waits until the client of both indexes has reached both for some time.
async fn calm(fleet: &Fleet) -> Result<()> {
    let failures = || fleet.client.counts().iter().map(|at| at.failures).sum::<u64>();
    let deadline = Instant::now() + PATIENCE;
    loop {
        let before = failures();
        sleep(CALM).await;
        if failures() == before {
            return Ok(());
        }
        ensure!(Instant::now() < deadline, "an index does not come back");
    }
}

async fn cause(fleet: &Fleet, fault: Fault, random: &mut ChaCha8Rng) -> Result<()> {
    let any = random.random_range(0..fleet.indexes());
    let how = if random.random() { Cut::Outside } else { Cut::Inside };
    match fault {
        Fault::KillIndex => fleet.kill_index(1 - WATCHED).await,
        Fault::CutOffShort => fleet.cut_off(any, how, SHORT_CUT).await,
        Fault::CutOffLong => {
            let meanwhile = async {
                sleep(SHORT_CUT).await;
                restart_engines(fleet, random).await?;
                drop_batches(fleet, random).await
            };
            tokio::try_join!(fleet.cut_off(any, how, LONG_CUT), meanwhile).map(drop)
        }
        Fault::KillBroker => fleet.kill_broker().await,
        Fault::KillAgents => {
            // One over gRPC and one over JetStream; the others are watched.
            fleet.kill_agent(Way::Agent).await?;
            fleet.kill_agent(Way::Broker).await
        }
        Fault::RotateCertificates => fleet.rotate_certificates().await,
        Fault::RestartEngines => restart_engines(fleet, random).await,
        Fault::DropBatches => drop_batches(fleet, random).await,
    }
}

async fn restart_engines(fleet: &Fleet, random: &mut ChaCha8Rng) -> Result<()> {
    let mut left = ENGINES;
    while left > 0 {
        let _working = fleet.rest.read().await;
        // One that is being checked waits for an index, perhaps until the end of a cut.
        let engine = &fleet.engines[random.random_range(0..fleet.engines.len())];
        if engine.try_restart(random).await? {
            left -= 1;
        }
    }
    Ok(())
}

async fn drop_batches(fleet: &Fleet, random: &mut ChaCha8Rng) -> Result<()> {
    loop {
        let engine = &fleet.engines[random.random_range(0..fleet.engines.len())];
        if let Some(held) = engine.try_hold() {
            return Ok(held.drop_next(DROPPED_BATCHES).await?);
        }
    }
}
