//! An agent's journals: of a publisher on its port, and of an engine's own publisher that it relays.

use crate::checkpoint::{BLOCK_SIZE, MODEL, anywhere, chain, publisher};
use crate::folder;
use anyhow::{Context, Result, bail, ensure};
use kvasir_feed::disk::{self, DiskConfig, Flaws, Restored};
use kvasir_feed::journal::{DumpStep, JournalConfig};
use kvasir_proto::convert::WorkerAddress;
use kvasir_proto::types::{CopyMode, Incarnation, KvEvent, PartitionKey, WorkerId};
use kvasir_sim::client;
use kvasir_sim::demo::metrics;
use kvasir_sim::engine::{EngineConfig, MockEngine, Prompt};
use kvasir_sim::server::{Addresses, Server};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;
use std::time::Duration;
use tempfile::TempDir;
use tokio::time::{Instant, sleep};

const WORKER: &str = "w";
const PUSHED: &str = "journal-pushed";
const RELAYED: &str = "journal-relayed";
/// Engine of the one, whose copies are not counted.
const PUSHING: &str = "custom";
/// Engine of the other, whose copies are counted.
const PUBLISHING: &str = "vllm";
/// Life of the publisher that has the last word.
const INCARNATION: u128 = 6;
/// Blocks that it holds at the end, at rank 0.
const BLOCKS: u64 = 300;
/// Small, so that an image is written soon.
const JOURNAL_BYTES: &str = "512KiB";
const PATIENCE: Duration = Duration::from_secs(60);
const LOOK: Duration = Duration::from_millis(20);
/// Most batches until an image must have been written.
const BATCHES_MAX: u64 = 2_000;
/// Where nobody listens.
const NOBODY: &str = "http://127.83.0.1:9";

async fn agent(folder: &Path, engine: &str, flags: &[&str]) -> Result<Server> {
    let folder = folder.to_str().context("a path in UTF-8")?;
    let block_size = BLOCK_SIZE.to_string();
    let few = [
        ["--worker-id", WORKER],
        ["--model", MODEL],
        ["--block-size", &block_size],
        ["--engine", engine],
        ["--journal-dir", folder],
        ["--journal-bytes", JOURNAL_BYTES],
    ];
    let any = Addresses { grpc: anywhere(), http: anywhere() };
    Server::agent_at(any, &[few.as_flattened(), flags].concat()).await
}

async fn has_image(agent: &Server) -> Result<bool> {
    let samples = metrics::fetch(agent.addresses.http).await?;
    let image = samples.iter().find(|at| at.name == "kvasir_agent_disk_image_bytes");
    Ok(image.context("its size is shown")?.value > 0.0)
}

/// Records both journals, and what they are read as.
pub async fn record(version: &Path) -> Result<()> {
    record_pushed(version).await?;
    record_relayed(version).await
}

async fn record_pushed(version: &Path) -> Result<()> {
    let kept = TempDir::new()?;
    let mut recorded = agent(kept.path(), PUSHING, &["--indexers", NOBODY]).await?;
    let grpc = recorded.addresses.grpc;
    publisher(grpc, WORKER, "engine", INCARNATION - 1).await?.publish(0, &[chain(0, 0, 9)]).await?;
    let mut uplink = publisher(grpc, WORKER, "engine", INCARNATION).await?;
    uplink.publish(0, &[chain(0, 0, BLOCKS)]).await?;
    uplink.publish(1, &[chain(0, 0, 60)]).await?;
    churn(&mut uplink, &recorded).await?;
    recorded.kill().await;
    keep(version, PUSHED, kept.path())
}

/// Blocks come and go until an image is written, and a little longer.
async fn churn(uplink: &mut kvasir_feed::uplink::Uplink, agent: &Server) -> Result<()> {
    let mut more = 0;
    for names in 1..BATCHES_MAX {
        let stored = chain(names, 0, 20);
        let KvEvent::Stored { tier, blocks, .. } = &stored else { bail!("a chain is stored") };
        let gone: Vec<_> = blocks.iter().map(|block| block.name).collect();
        let removed = KvEvent::Removed { tier: *tier, names: gone };
        uplink.publish(0, &[stored, removed]).await?;
        more += u64::from(has_image(agent).await?);
        if more == 5 {
            return Ok(());
        }
    }
    bail!("no image after {BATCHES_MAX} batches")
}

async fn record_relayed(version: &Path) -> Result<()> {
    let kept = TempDir::new()?;
    let engine = MockEngine::start(EngineConfig::default()).await?;
    let source = format!("endpoint={},replay={}", engine.endpoint(), engine.replay_endpoint());
    let flags = ["--indexers", NOBODY, "--source", &source];
    let mut recorded = agent(kept.path(), PUBLISHING, &flags).await?;
    let mut more = 0;
    for first in 0..BATCHES_MAX as u32 {
        let tokens = (0..320).map(|at| first << 16 | at).collect();
        engine.run(Prompt { tokens, answer: vec![1, 2, 3] }).await?;
        more += u64::from(has_image(&recorded).await?);
        if more == 5 {
            break;
        }
    }
    ensure!(more == 5, "no image");
    recorded.kill().await;
    engine.stop().await;
    keep(version, RELAYED, kept.path())
}

fn keep(version: &Path, name: &str, kept: &Path) -> Result<()> {
    let target = version.join(name);
    drop(std::fs::remove_dir_all(&target));
    folder::copy_into(kept, &target)?;
    let described = read(&target, name)?;
    folder::expect(version, &format!("{name}.txt"), &described)
}

/// Reads recorded journals, and has an agent go on with one.
pub async fn check(version: &Path) -> Result<()> {
    for name in [PUSHED, RELAYED] {
        let described = read(&version.join(name), name).context(name)?;
        folder::compare(version, &format!("{name}.txt"), &described)?;
    }
    let scratch = folder::copy(&version.join(PUSHED))?;
    let mut index = Server::start_anywhere().await?;
    let to = format!("http://{}", index.addresses.grpc);
    let mut back = agent(scratch.path(), PUSHING, &["--indexers", &to]).await?;
    let mut uplink = publisher(back.addresses.grpc, WORKER, "engine", INCARNATION).await?;
    ensure!(uplink.next_sequence().is_some_and(|next| next > 2), "{:?}", uplink.next_sequence());
    uplink.publish(0, &[chain(0, BLOCKS, BLOCKS + 10)]).await?;
    let mut client = client::connect(index.addresses.grpc).await?;
    let deadline = Instant::now() + PATIENCE;
    loop {
        let held = match client::find_worker(&mut client, MODEL, WORKER).await? {
            // A dump is cut off where a life begins meanwhile.
            Some(_) => client::dump_chains(&mut client, MODEL, WORKER).await.unwrap_or_default(),
            None => Default::default(),
        };
        if held.len() as u64 == BLOCKS + 10 + 60 {
            break;
        }
        ensure!(Instant::now() < deadline, "{} blocks: {}", held.len(), back.output());
        sleep(LOOK).await;
    }
    back.stop().await;
    index.stop().await;
    Ok(())
}

/// What an agent would go on with, as text.
fn read(folder: &Path, name: &str) -> Result<String> {
    let scratch = folder::copy(folder)?;
    let address =
        WorkerAddress { partition: PartitionKey::new(MODEL, "")?, worker: WorkerId::new(WORKER)? };
    let folder = scratch.path().to_owned();
    let lora_names = BTreeMap::new();
    let config =
        DiskConfig { folder, address, block_size: BLOCK_SIZE, lora_names, is_consolidated: false };
    let copy_mode = if name == PUSHED { CopyMode::Set } else { CopyMode::Counted };
    let journal = JournalConfig { copy_mode, ..JournalConfig::DEFAULT };
    let opened = disk::open(&config, journal, (Incarnation(1), 0))?;
    match opened.restored {
        Ok(restored) => describe(restored),
        Err(why) => bail!("a new life would begin: {why:?}"),
    }
}

fn describe(Restored { mut journal, sources }: Restored) -> Result<String> {
    let mut sources = sources.positions;
    let mut text = String::new();
    let first = journal.first();
    let head = journal.head();
    let oldest = journal.oldest();
    writeln!(text, "batches from {first}: {oldest:?} to {head:?}")?;
    sources.sort_by(|a, b| a.name.cmp(&b.name));
    for source in &sources {
        // A relay is named by its engine's port.
        let name = source.name.split("://").next().unwrap_or_default();
        writeln!(text, "source {name} {:?} {:?}", source.kind, source.copy_mode)?;
        writeln!(text, " {:?}", source.cursor)?;
        let Flaws { has_lost, lacks_blocks } = source.flaws;
        writeln!(text, " lost {has_lost}, lacks {lacks_blocks}")?;
        writeln!(text, " past {:?}, ranks {:?}", source.past, source.ranks)?;
    }
    let dump = journal.begin_dump(None)?;
    let mut held = BTreeMap::new();
    loop {
        match journal.step_dump(dump, 1_024)? {
            DumpStep::Records { rank, records } => {
                held.extend(records.into_iter().map(|at| ((rank, at.name), at)));
            }
            DumpStep::Cut(cut) => {
                writeln!(text, "watermark {:?}, incomplete {:?}", cut.watermark, cut.incomplete)?;
                break;
            }
        }
    }
    for ((rank, name), at) in held {
        let parent = at.parent.map(|it| it.0);
        let local = at.local.map(|it| it.0);
        let copies = at.copies;
        writeln!(text, "{rank} {}: {parent:?} {local:?} {copies:?}", name.0)?;
    }
    Ok(text)
}
