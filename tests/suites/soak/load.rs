//! What goes on all the time: engines answer prompts, and clients query the indexes.

use super::engines::{self, BLOCK_SIZE, MODEL};
use super::fleet::Fleet;
use super::report::Report;
use anyhow::Result;
use rand::Rng;
use router_client::Prompt;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

/// Tasks that let engines answer prompts.
const DRIVERS: u64 = 4;
/// Prompts of one of them in a second.
const PROMPTS_PER_SECOND: u32 = 80;
/// Tasks that query.
const ASKERS: u64 = 2;
/// Queries of one of them in a second.
const QUERIES_PER_SECOND: u32 = 100;

/// Starts these tasks.
pub fn start(
    fleet: &Arc<Fleet>,
    report: &Arc<Report>,
    stop: &CancellationToken,
    seed: u64,
) -> JoinSet<Result<()>> {
    let mut tasks = JoinSet::new();
    for number in 0..DRIVERS {
        let random = engines::random(seed, 100 + number);
        tasks.spawn(drive(Arc::clone(fleet), Arc::clone(report), stop.clone(), random));
    }
    for number in 0..ASKERS {
        let random = engines::random(seed, 200 + number);
        tasks.spawn(ask(Arc::clone(fleet), Arc::clone(report), stop.clone(), random));
    }
    tasks
}

async fn drive(
    fleet: Arc<Fleet>,
    report: Arc<Report>,
    stop: CancellationToken,
    mut random: impl Rng,
) -> Result<()> {
    let mut ticks = interval(Duration::from_secs(1) / PROMPTS_PER_SECOND);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    while !stop.is_cancelled() {
        ticks.tick().await;
        let working = fleet.rest.read().await;
        let engine = &fleet.engines[random.random_range(0..fleet.engines.len())];
        // Load goes on while one engine waits for an index.
        if let Some(held) = engine.try_hold() {
            held.run(engines::prompt(&mut random)).await?;
            report.prompt();
        }
        drop(working);
    }
    Ok(())
}

async fn ask(
    fleet: Arc<Fleet>,
    report: Arc<Report>,
    stop: CancellationToken,
    mut random: impl Rng,
) -> Result<()> {
    let mut found = BTreeSet::new();
    let mut ticks = interval(Duration::from_secs(1) / QUERIES_PER_SECOND);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    while !stop.is_cancelled() {
        ticks.tick().await;
        let (number, tokens) = engines::question(&mut random);
        let began = Instant::now();
        let answer = fleet.client.find(&Prompt::new(MODEL, BLOCK_SIZE as u32, &tokens)).await;
        let error = match answer {
            Ok(answer) if !answer.missing_shards.is_empty() => {
                Some("no replica answered in time".to_owned())
            }
            // So many engines have a document that it is never gone.
            Ok(answer) if answer.overlaps.is_empty() => {
                found.contains(&number).then(|| format!("nobody has document {number}"))
            }
            Ok(_) => {
                found.insert(number);
                None
            }
            Err(error) => Some(error.to_string()),
        };
        report.query(began.elapsed(), error);
    }
    Ok(())
}
