//! What must be true at any time: an answer that is called exact is exact. And what must be true when engines rest: the
//! indexes hold what the engines hold.
//!
//! Engines with an agent must become right; meanwhile, an index cannot know what the agent has not told it yet. Of engines with
//! a window, the main group is checked; suite `hybrid` checks the rest.

use super::engines::{self, BLOCK_SIZE, Engine, Held, MODEL, Way};
use super::fleet::{Fleet, PATIENCE};
use super::report::Report;
use anyhow::{Context, Result, bail, ensure};
use kvasir_proto::pb::SourceInfo;
use kvasir_proto::types::SourceState;
use kvasir_sim::client;
use rand::Rng;
use router_client::{IndexerClient, Overlap, Prompt};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

/// Time between two questions about the same prompt.
const POLL_INTERVAL: Duration = Duration::from_millis(5);
/// Time between two checks.
const PAUSE: Duration = Duration::from_millis(200);
/// Time between two comparisons of a worker that is not right yet.
const COMPARE_INTERVAL: Duration = Duration::from_millis(100);
/// One check of so many empties the engine's cache first.
const RESET_EVERY: u32 = 4;

/// Holds one engine after the other, lets it answer two prompts, and asks each index until its answers are exact. An index
/// that is away now must be right when it is back.
pub async fn run(
    fleet: Arc<Fleet>,
    report: Arc<Report>,
    stop: CancellationToken,
    mut random: impl Rng,
) -> Result<()> {
    let clients: Vec<IndexerClient> =
        (0..fleet.indexes()).map(|index| fleet.client_of(index)).collect::<Result<_>>()?;
    while !stop.is_cancelled() {
        let working = fleet.rest.read().await;
        let engine = &fleet.engines[random.random_range(0..fleet.engines.len())];
        let held = engine.hold().await;
        let [first, second] = [engines::prompt(&mut random), engines::prompt(&mut random)];
        let [early, late] = [&first, &second].map(|at| at.tokens.clone());
        held.run(first).await?;
        let mut kept = early.len();
        if random.random_ratio(1, RESET_EVERY) {
            ensure!(held.reset().await?, "{} is idle", engine.worker);
            // Of the first prompt, the engine has what the second one begins with.
            kept = early.iter().zip(&late).take_while(|(one, other)| one == other).count();
        }
        held.run(second).await?;
        let began = Instant::now();
        for (number, client) in clients.iter().enumerate() {
            let exact = async {
                until_exact(client, engine, &held, &late, late.len()).await?;
                until_exact(client, engine, &held, &early, kept).await
            };
            exact.await.with_context(|| format!("index {number}"))?;
            report.fresh(began.elapsed());
        }
        drop((held, working));
        sleep(PAUSE).await;
    }
    Ok(())
}

/// Asks about a prompt, of which the engine holds this many leading tokens, until the answer has the engine's last batch. If
/// that answer is called exact, it must be right.
async fn until_exact(
    client: &IndexerClient,
    engine: &Engine,
    held: &Held<'_>,
    tokens: &[u32],
    kept: usize,
) -> Result<()> {
    let blocks = (kept / BLOCK_SIZE) as u32;
    let last = held.truth().await?.last_sequence;
    // Each rank is listed, also one without the prompt's blocks.
    let prompt =
        Prompt { minimum_overlap_blocks: 0, ..Prompt::new(MODEL, BLOCK_SIZE as u32, tokens) };
    let deadline = Instant::now() + PATIENCE;
    loop {
        // An index may be away.
        let answer = client.find(&prompt).await;
        let found = answer.as_ref().ok().and_then(|answer| {
            answer.overlaps.iter().find(|at| at.worker.worker.as_str() == engine.worker)
        });
        if let Some(found) = found {
            let is_right =
                found.main_group_blocks == blocks && (found.blocks == blocks || engine.has_window);
            if is_right && found.state == SourceState::Exact {
                return Ok(());
            }
            ensure!(!is_wrong(engine, found, last), "{blocks} blocks, not {found:?}");
        }
        if Instant::now() > deadline {
            bail!("{} never has its {blocks} blocks, batch {last:?}: {answer:?}", engine.worker);
        }
        sleep(POLL_INTERVAL).await;
    }
}

/// Whether an answer with other blocks than the engine's claims to be right. An agent's numbers are its own.
fn is_wrong(engine: &Engine, found: &Overlap, last: Option<u64>) -> bool {
    let applied = found.applied.as_ref().map(|cursor| cursor.sequence);
    engine.way == Way::Direct && applied == last && found.state == SourceState::Exact
}

/// Waits until each index holds exactly what each engine holds, while all engines rest. Returns how long that took.
pub async fn compare_all(fleet: &Fleet) -> Result<Duration> {
    let _rest = fleet.rest.write().await;
    let began = Instant::now();
    for index in 0..fleet.indexes() {
        for engine in &fleet.engines {
            compare(fleet, index, engine).await.with_context(|| format!("index {index}"))?;
        }
    }
    Ok(began.elapsed())
}

async fn compare(fleet: &Fleet, index: usize, engine: &Engine) -> Result<()> {
    let truth = engine.hold().await.truth().await?;
    let worker = engine.worker.as_str();
    let mut indexer = fleet.indexer(index).await?;
    let deadline = Instant::now() + PATIENCE;
    loop {
        let listed = client::find_worker(&mut indexer, MODEL, worker).await?;
        let sources = listed.map(|at| at.sources).unwrap_or_default();
        let is_exact = !sources.is_empty() && sources.iter().all(|at| at.reasons.is_empty());
        let dumped = client::dump_device_copies(&mut indexer, MODEL, worker).await;
        if is_exact && dumped.as_ref().is_ok_and(|dumped| *dumped == truth.copies) {
            return Ok(());
        }
        let applied = |at: &SourceInfo| at.applied.as_ref().map(|at| at.sequence);
        let has_all = sources.iter().all(|at| applied(at) == truth.last_sequence);
        let is_wrong = engine.way == Way::Direct && is_exact && has_all && dumped.is_ok();
        if is_wrong || Instant::now() > deadline {
            let dumped = dumped.context("dump a worker")?;
            let missing = truth.copies.keys().filter(|name| !dumped.contains_key(name)).count();
            let more = dumped.keys().filter(|name| !truth.copies.contains_key(name)).count();
            bail!("{worker}: {missing} blocks are missing, {more} are too many: {sources:?}");
        }
        sleep(COMPARE_INTERVAL).await;
    }
}
