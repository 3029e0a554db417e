//! Disk tiers and volumes that older versions wrote, in `tests/data/upgrades`. `KVASIR_RECORD=NAME` records another one.

#![allow(clippy::disallowed_methods, reason = "tests read their switches from the environment")]

use crate::engine::{Engine, hashes, over_socket, prompt};
use crate::folder;
use crate::place::{HOST_BLOCKS, LOOK, PATIENCE, Place};
use anyhow::{Context, Result, ensure};
use kvasir_proto::pb;
use std::env;
use std::fmt::Write;
use std::fs;
use std::path::Path;
use tempfile::TempDir;
use tokio::time::{Instant, sleep};

/// Name of the folder with a version's `disk` and `volume`.
const TIERS: &str = "tiers";
const PROMPTS: u64 = 20;
const BLOCKS: u64 = 4;
/// Fewer than are saved: the volume has the rest.
const DISK_BLOCKS: usize = 2 * HOST_BLOCKS;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tiers_of_older_versions_are_read() -> Result<()> {
    if let Ok(version) = env::var("KVASIR_RECORD") {
        record(&folder::of(&version)).await?;
    }
    let mut read = 0;
    for version in folder::versions()? {
        if version.join(TIERS).is_dir() {
            println!("{}", version.display());
            check(&version).await?;
            read += 1;
        }
    }
    ensure!(read > 0, "no version's tiers are recorded");
    Ok(())
}

async fn record(version: &Path) -> Result<()> {
    let mut place = start(tempfile::tempdir()?).await?;
    let mut engine = Engine::open(over_socket(&place.socket()).await?).await?;
    for number in 1..=PROMPTS {
        engine.save(&prompt(number, BLOCKS)).await?;
        engine.until_copied().await?;
    }
    let held = describe(&mut engine).await?;
    drop(engine);
    place.agent.kill().await;
    fs::remove_file(place.socket())?;
    let target = version.join(TIERS);
    drop(fs::remove_dir_all(&target));
    folder::copy_into(place.folder.path(), &target)?;
    place.index.stop().await;
    folder::expect(version, "tiers.txt", &held)
}

/// Starts an agent on what an older one has written, and gets every block back.
async fn check(version: &Path) -> Result<()> {
    let scratch = folder::copy(&version.join(TIERS))?;
    let place = start(scratch).await?;
    let mut engine = Engine::open(over_socket(&place.socket()).await?).await?;
    let deadline = Instant::now() + PATIENCE;
    // The volume is searched in the background.
    loop {
        let compared = folder::compare(version, "tiers.txt", &describe(&mut engine).await?);
        if compared.is_ok() || Instant::now() > deadline {
            compared?;
            break;
        }
        sleep(LOOK).await;
    }
    for number in 1..=PROMPTS {
        let loaded = engine.load(&prompt(number, BLOCKS)).await?;
        ensure!(loaded as u64 == BLOCKS, "prompt {number}: {loaded} blocks");
        engine.until_copied().await?;
    }
    place.stop().await;
    Ok(())
}

async fn start(folder: TempDir) -> Result<Place> {
    let volume = folder.path().join("volume");
    fs::create_dir_all(&volume)?;
    let volume = format!("url=file://{},bytes=1MiB", volume.display());
    Place::in_folder(folder, DISK_BLOCKS, &["--blocks-volume", &volume]).await
}

/// Tiers below host memory of every block.
async fn describe(engine: &mut Engine) -> Result<String> {
    let mut text = String::new();
    for number in 1..=PROMPTS {
        for sequence in hashes(&prompt(number, BLOCKS)) {
            let mut tiers = engine.tiers(sequence).await?;
            tiers.retain(|tier| *tier != pb::BlockTier::Host);
            let tiers: Vec<_> = tiers.iter().map(pb::BlockTier::as_str_name).collect();
            writeln!(text, "{sequence:016x} {}", tiers.join(" ")).context("text")?;
        }
    }
    Ok(text)
}
