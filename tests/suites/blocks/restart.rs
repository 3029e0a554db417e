use crate::engine::{Engine, over_socket, prompt};
use crate::place::{HOST_BLOCKS, Place};
use crate::saved::{held, leading, until_equal};
use anyhow::Result;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::time::Duration;
use tokio::select;
use tokio::time::sleep;

const ROUNDS: u64 = 3;

/// Saves prompts until something breaks.
async fn save_on(engine: &mut Engine, prompts: &[Vec<u64>]) {
    for locals in prompts {
        if engine.save(locals).await.is_err() {
            return;
        }
    }
}

/// Kills the agent while an engine saves, and looks at what is left.
async fn kill_and_come_back(seed: u64, flags: &[&str]) -> Result<()> {
    println!("seed {seed}, {flags:?}");
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let mut place = Place::start(flags).await?;
    let mut prompts: Vec<Vec<u64>> = Vec::new();
    for round in 0..ROUNDS {
        let mut engine = Engine::open(over_socket(&place.socket()).await?).await?;
        let more: Vec<_> = (0..8).map(|at| prompt(round * 100 + at + 1, 3)).collect();
        prompts.extend(more.iter().cloned());
        engine.save(&more[0]).await?;
        engine.until_copied().await?;
        let pause = Duration::from_millis(random.random_range(0..30));
        select! {
            () = save_on(&mut engine, &more[1..]) => {}
            () = sleep(pause) => {}
        }
        drop(engine);
        place.restart().await?;
        let mut engine = Engine::open(over_socket(&place.socket()).await?).await?;
        let expected = until_equal(&place, &mut engine, &prompts).await?;
        assert!(expected.iter().all(|(_, _, tier)| *tier == 2), "host memory is new");
        assert!(expected.len() >= 3, "seed {seed}, round {round}: {expected:?}");
        let on_disk = place.metric("kvasir_agent_blocks_found_on_disk_total", "taken").await?;
        assert_eq!(on_disk as usize, expected.len());
        // Every block that there is has its bytes; `load` checks them.
        let mut loaded = 0;
        for locals in &prompts {
            loaded += engine.load(locals).await?;
        }
        assert_eq!(loaded, leading(&expected, &prompts), "seed {seed}, round {round}");
        until_equal(&place, &mut engine, &prompts).await?;
    }
    place.stop().await;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_agent_finds_its_disk_blocks_and_the_index_is_equal() -> Result<()> {
    kill_and_come_back(1, &[]).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn so_it_does_with_a_journal_on_disk() -> Result<()> {
    let journal = tempfile::tempdir()?;
    let folder = journal.path().display().to_string();
    kill_and_come_back(2, &["--journal-dir", &folder]).await
}

/// The file is another model's: it is left as it is, and the error says what to do.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_models_blocks_are_never_served() -> Result<()> {
    let mut place = Place::start(&[]).await?;
    let mut engine = Engine::open(over_socket(&place.socket()).await?).await?;
    let prompts = [prompt(1, HOST_BLOCKS as u64 / 2)];
    engine.save(&prompts[0]).await?;
    engine.until_copied().await?;
    drop(engine);
    place.agent.kill().await;
    for flags in [["--blocks-geometry", "layout=other"], ["--blocks-host", "threads=0"]] {
        let refused = format!("{:#}", place.second(&flags).await.expect_err("refused"));
        let expected = if flags[0] == "--blocks-geometry" {
            "holds blocks of another layout or model"
        } else {
            "blocks-host threads: is 0, must be 1 to 256"
        };
        assert!(refused.contains(expected), "{refused}");
    }
    place.begin_again().await?;
    let mut engine = Engine::open(over_socket(&place.socket()).await?).await?;
    assert_eq!(held(&mut engine, &prompts).await?.len(), prompts[0].len(), "they are still there");
    let refused = format!("{:#}", place.second(&[]).await.expect_err("the socket is in use"));
    assert!(refused.contains("blocks-socket: "), "{refused}");
    assert!(refused.contains("is in use by another process"), "{refused}");
    place.stop().await;
    Ok(())
}
