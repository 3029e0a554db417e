//! Consolidated sources whose journal is on disk: an agent that is killed knows whose block is whose when it is back.

use crate::engine::{Engine, over_socket, prompt};
use crate::joined::{Publisher, removed, stored};
use crate::place::{BLOCK_SIZE, Chain, LOOK, MODEL, PATIENCE, Place};
use crate::saved::{held, held_beside};
use anyhow::{Context, Result, bail};
use kvasir_proto::hash::{Namespace, local_hashes, tokens_le};
use kvasir_proto::pb;
use kvasir_sim::client::{self, Indexer};
use kvasir_sim::engine::{EngineConfig, EngineError, MockEngine, Prompt};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::Duration;
use tempfile::TempDir;
use tokio::time::{sleep, timeout};
use tokio::{join, select};

const SEEDS: u64 = 2;
const ROUNDS: u32 = 4;
const REQUESTS: usize = 6;
/// What the index follows by itself: what the engine holds.
const DIRECT: &str = "engine itself";

/// A folder for the journal, and the flags of an agent that consolidates.
fn flags(journal: &TempDir) -> [String; 3] {
    let folder = journal.path().display().to_string();
    ["--consolidate".to_owned(), "--journal-dir".to_owned(), folder]
}

/// Waits until it is known whether the agent's incarnation continues, and whether it does.
async fn is_kept(place: &Place) -> Result<bool> {
    let told = async {
        while place.metric("kvasir_agent_disk_verdict", "pending").await? > 0.0 {
            sleep(LOOK).await;
        }
        Ok(place.metric("kvasir_agent_disk_verdict", "kept").await? > 0.0)
    };
    timeout(PATIENCE, told).await.context("it is never known")?
}

fn on_device(locals: &[u64]) -> BTreeSet<Chain> {
    (1..=locals.len()).map(|blocks| (0, locals[..blocks].to_vec(), 0)).collect()
}

/// What the block manager has on disk: all that is left of it after a kill.
fn on_disk(locals: &[u64]) -> BTreeSet<Chain> {
    (1..=locals.len()).map(|blocks| (0, locals[..blocks].to_vec(), 2)).collect()
}

/// Looks on, and fails as soon as a prompt is not found on disk.
async fn never_lost(index: SocketAddr, locals: &[u64]) -> Result<()> {
    let mut index = client::connect(index).await?;
    loop {
        let model = MODEL.to_owned();
        let local_hashes = locals.to_vec();
        let request = pb::FindMatchesRequest { model, local_hashes, ..Default::default() };
        let found = index.find_matches(request).await?.into_inner();
        let best = found.matches.first().and_then(|best| best.blocks_by_tier).unwrap_or_default();
        if best.disk as usize != locals.len() {
            bail!("of {} blocks {} are on disk", locals.len(), best.disk);
        }
        sleep(Duration::from_millis(2)).await;
    }
}

/// Killed twice: while its engine lives on, and while the engine is restarted. Of the one nothing is lost, of the other exactly
/// what it held, and what the block manager has on disk is found all the time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_source_is_known_again_after_a_kill() -> Result<()> {
    let journal = tempfile::tempdir()?;
    let mut place = Place::start(&flags(&journal).each_ref().map(String::as_str)).await?;
    let mut saver = Engine::open(over_socket(&place.socket()).await?).await?;
    let [both, saved, own, next] = [1, 2, 3, 4].map(|number| prompt(number, 3));
    let mut engine = Publisher::connect(&place, 3).await?;
    for (sequence, locals) in (0..).zip([&both, &own]) {
        engine.publish(sequence, stored(locals)).await?;
    }
    for locals in [&both, &saved] {
        saver.save(locals).await?;
    }
    saver.until_copied().await?;
    let mut expected = held(&mut saver, &[both.clone(), saved.clone()]).await?;
    expected.extend(on_device(&both).into_iter().chain(on_device(&own)));
    place.until_indexed(&expected).await?;

    let index = place.index.addresses.grpc;
    let lookout = never_lost(index, &saved);
    let kills = async {
        place.restart().await?;
        let disk: BTreeSet<_> = on_disk(&both).into_iter().chain(on_disk(&saved)).collect();
        let mut engine = Publisher::connect(&place, 3).await?;
        assert_eq!(engine.applied, Some(1), "what was acknowledged");
        assert!(is_kept(&place).await?);
        let mut expected = disk.clone();
        expected.extend(on_device(&both).into_iter().chain(on_device(&own)));
        place.until_indexed(&expected).await?;
        // The one source's end is not the other's.
        engine.publish(2, removed(&both)).await?;
        let expected: BTreeSet<_> = disk.iter().cloned().chain(on_device(&own)).collect();
        place.until_indexed(&expected).await?;

        place.restart().await?;
        let mut engine = Publisher::connect(&place, 4).await?;
        assert_eq!(engine.applied, None, "it is another engine");
        assert!(is_kept(&place).await?, "the block manager holds something");
        place.until_indexed(&disk).await?;
        engine.publish(0, stored(&next)).await?;
        let expected: BTreeSet<_> = disk.into_iter().chain(on_device(&next)).collect();
        place.until_indexed(&expected).await?;
        anyhow::Ok(())
    };
    select! {
        lost = lookout => lost?,
        done = kills => done?,
    }
    place.stop().await;
    Ok(())
}

/// A prompt, many of which begin alike, and the blocks that it is saved as.
fn any_prompt(random: &mut ChaCha8Rng) -> (Prompt, Vec<u64>) {
    let first = random.random_range(0..8_u32) << 8;
    let count = 4 * random.random_range(2..6);
    let tokens: Vec<u32> = (0..8).chain((0..count).map(|at| first + at)).collect();
    let mut locals = Vec::new();
    let seed = Namespace::default().seed();
    local_hashes(&tokens_le(&tokens), BLOCK_SIZE as usize, seed, &[], &mut locals);
    let answer = (0..4).map(|at| 1 << 20 | first | at).collect();
    (Prompt { tokens, answer }, locals.into_iter().map(|local| local.0).collect())
}

/// Has the engine answer prompts, and saves those that `save` says, until one of both is gone.
async fn work(engine: &MockEngine, saver: &mut Engine, prompts: &[(Prompt, Vec<u64>)]) {
    for (number, (prompt, locals)) in prompts.iter().enumerate() {
        match engine.run(prompt.clone()).await {
            Ok(_) | Err(EngineError::Gone) => {}
            Err(error) => panic!("{error}"),
        }
        if number % 2 == 0 && saver.save(locals).await.is_err() {
            return;
        }
    }
}

/// Waits until the index holds of the agent what it holds of the engine itself and what the block manager has.
async fn until_union(
    place: &Place,
    index: &mut Indexer,
    engine: &MockEngine,
    saver: &mut Engine,
    prompts: &[Vec<u64>],
) -> Result<BTreeSet<Chain>> {
    saver.until_copied().await?;
    let last = engine.truth().await?.last_sequence.context("it has published something")?;
    client::wait_until_exact_at(index, (MODEL, DIRECT), last, PATIENCE).await?;
    let of_engine = client::dump_chains(index, MODEL, DIRECT).await?;
    let expected = held_beside(of_engine, saver, prompts).await?;
    place.until_indexed(&expected).await?;
    Ok(expected)
}

/// An engine's own publisher and a block manager, saved and computed prompts with and without common blocks, and kills at any
/// time: of the agent, and of the engine while the agent is away.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_index_is_the_union_whenever_the_agent_is_killed() -> Result<()> {
    for seed in 0..SEEDS {
        println!("seed {seed}");
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let journal = tempfile::tempdir()?;
        let config = EngineConfig::default();
        let engine = MockEngine::start(EngineConfig { block_size: BLOCK_SIZE as usize, ..config });
        let engine = engine.await?;
        let source = format!("endpoint={},replay={}", engine.endpoint(), engine.replay_endpoint());
        let [consolidate, option, folder] = flags(&journal);
        let flags = [&consolidate, &option, &folder, "--engine", "vllm", "--source", &source];
        let mut place = Place::start(&flags).await?;
        let mut index = client::connect(place.index.addresses.grpc).await?;
        let itself = (MODEL, DIRECT);
        client::register_engine(&mut index, itself, BLOCK_SIZE as usize, &engine).await?;
        let mut known: Vec<Vec<u64>> = Vec::new();
        for round in 0..ROUNDS {
            let prompts: Vec<_> = (0..2 * REQUESTS).map(|_| any_prompt(&mut random)).collect();
            known.extend(prompts.iter().map(|(_, locals)| locals.clone()));
            let mut saver = Engine::open(over_socket(&place.socket()).await?).await?;
            work(&engine, &mut saver, &prompts[..REQUESTS]).await;
            until_union(&place, &mut index, &engine, &mut saver, &known).await?;
            let pause = Duration::from_millis(random.random_range(0..60));
            let kill = async {
                sleep(pause).await;
                place.agent.kill().await;
            };
            join!(work(&engine, &mut saver, &prompts[REQUESTS..]), kill);
            let is_restarted = random.random_bool(0.3);
            println!("round {round}: killed after {pause:?}, engine restarted: {is_restarted}");
            if is_restarted {
                engine.restart().await?;
                // Until it publishes, the index does not know that it is another one.
                engine.run(any_prompt(&mut random).0).await?;
            }
            place.begin_again().await?;
            assert!(is_kept(&place).await?, "seed {seed}, round {round}: a source goes on");
            let mut saver = Engine::open(over_socket(&place.socket()).await?).await?;
            let union = until_union(&place, &mut index, &engine, &mut saver, &known).await?;
            let tiers: BTreeSet<_> = union.iter().map(|(_, _, tier)| *tier).collect();
            assert!(tiers.contains(&0) && tiers.contains(&2), "{tiers:?}");
        }
        engine.stop().await;
        place.stop().await;
    }
    Ok(())
}
