//! Two agents whose tiers hold a tenth of all blocks: one saves them, the other one finds them through the index and fetches
//! them, while either agent, the index and the broker are killed. No byte is wrong, and in the end the index holds what the
//! tiers hold.
//!
//! `KVASIR_CHURN_SECONDS=600` works for ten minutes; `KVASIR_SEED=7` begins with another seed.

mod engines;
mod fleet;

use crate::engine::{Engine, prompt};
use crate::found::library;
use crate::place::{LOOK, PATIENCE};
use crate::rank::Rank;
use crate::saved::held;
use anyhow::{Context, Result, ensure};
use engines::{Done, Player, Role, open};
use fleet::{BLOCKS, DECODE, Doors, Fleet, PREFILL, Plane, Victim};
use kvasir_sim::client;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::collections::BTreeMap;
use std::env;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

/// Blocks of a prompt.
const PROMPT_BLOCKS: usize = 6;
/// How long a run lasts by default, without its beginning and end.
const SECONDS: u64 = 12;

#[expect(clippy::disallowed_methods, reason = "seed and length are chosen by whoever runs tests")]
fn number(name: &str) -> Option<u64> {
    env::var(name).ok()?.parse().ok()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn blocks_are_right_while_everybody_is_killed_over_grpc() -> Result<()> {
    churn(Plane::Grpc, &[], "").await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn blocks_are_right_while_everybody_is_killed_over_jetstream() -> Result<()> {
    churn(Plane::JetStream, &[], "").await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn blocks_are_right_while_everybody_is_killed_over_nixl() -> Result<()> {
    let library = library("../kvbm-agent/memory/tests/nixl/library").display().to_string();
    churn(Plane::Grpc, &["--insecure"], &format!(",backend=nixl,nixl-library={library}")).await
}

async fn churn(plane: Plane, flags: &[&str], peer: &str) -> Result<()> {
    let seed = number("KVASIR_SEED").unwrap_or(1);
    let lasts = Duration::from_secs(number("KVASIR_CHURN_SECONDS").unwrap_or(SECONDS));
    println!("seed {seed}, {plane:?}, {flags:?}, {peer:?}, {lasts:?}");
    let mut fleet = Fleet::start(plane, flags, peer).await?;
    let prompts: Arc<[_]> = (0..BLOCKS.div_ceil(PROMPT_BLOCKS) as u64)
        .map(|at| prompt(at, PROMPT_BLOCKS as u64))
        .collect();
    let done = Arc::new(Done::default());
    let over = CancellationToken::new();
    let mut engines = JoinSet::new();
    let random = |salt: u64| ChaCha8Rng::seed_from_u64(seed.wrapping_mul(31).wrapping_add(salt));
    let doors = fleet.doors();
    for (role, salt) in [(Role::Prefill, 1), (Role::Decode, 2), (Role::Decode, 3)] {
        let doors = doors.clone();
        let prompts = Arc::clone(&prompts);
        let player = Player { role, doors, prompts, done: Arc::clone(&done), random: random(salt) };
        engines.spawn(player.work(over.clone()));
    }
    let ended = kill_some(&mut fleet, &mut random(0), lasts).await;
    over.cancel();
    while let Some(engine) = engines.join_next().await {
        engine?.with_context(|| fleet.output())?;
    }
    let killed = ended?;
    println!("killed {killed:?}; {done:?}");
    for worker in [(PREFILL, doors.prefill.as_path()), (DECODE, doors.decode.as_path())] {
        let equal = audit(&doors, worker, &prompts).await;
        equal.with_context(|| format!("{:?}\n{}", worker.0, fleet.output()))?;
    }
    ensure!(done.all().iter().all(|count| *count > 0), "something never happened: {done:?}");
    fleet.stop().await;
    Ok(())
}

/// Kills somebody several times a second.
async fn kill_some(
    fleet: &mut Fleet,
    random: &mut ChaCha8Rng,
    lasts: Duration,
) -> Result<BTreeMap<String, u32>> {
    let mut killed = BTreeMap::new();
    let end = Instant::now() + lasts;
    while Instant::now() < end {
        sleep(Duration::from_millis(random.random_range(50..800))).await;
        let victim = *Victim::ALL.choose(random).context("somebody")?;
        fleet.kill(victim).await?;
        *killed.entry(format!("{victim:?}")).or_default() += 1;
    }
    Ok(killed)
}

/// Waits until the index holds what an agent's tiers hold, then reads every block.
async fn audit(doors: &Doors, (rank, socket): (Rank, &Path), prompts: &[Vec<u64>]) -> Result<()> {
    let mut engine = open(socket, rank).await?;
    let worker = rank.worker();
    engine.until_copied().await?;
    until_equal(doors, &worker, &mut engine, prompts).await?;
    let mut loaded = 0;
    for locals in prompts {
        loaded += engine.load(locals).await?;
        engine.until_copied().await?;
    }
    ensure!(loaded > 0, "no block is left");
    until_equal(doors, &worker, &mut engine, prompts).await?;
    // In the end nobody holds anything: all slots are free, or of blocks that may be evicted. What was lent to an agent that was
    // killed stays for some seconds.
    engine
        .until("free", |stats| {
            stats.pools.iter().all(|pool| pool.free + pool.inactive == pool.blocks_max)
        })
        .await?;
    Ok(())
}

async fn until_equal(
    doors: &Doors,
    worker: &str,
    engine: &mut Engine,
    prompts: &[Vec<u64>],
) -> Result<()> {
    let expected = held(engine, prompts).await?;
    let mut index = client::connect(doors.index).await?;
    let equal = async {
        while client::dump_chains(&mut index, crate::place::MODEL, worker).await.ok().as_ref()
            != Some(&expected)
        {
            sleep(LOOK).await;
        }
    };
    if timeout(PATIENCE, equal).await.is_err() {
        let found = client::dump_chains(&mut index, crate::place::MODEL, worker).await?;
        let (lacks, extra): (Vec<_>, Vec<_>) =
            (expected.difference(&found).collect(), found.difference(&expected).collect());
        anyhow::bail!("the index lacks {lacks:?} and has {extra:?} beside");
    }
    Ok(())
}
