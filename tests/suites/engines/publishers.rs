//! The engines' own publisher classes, unmodified, driven from here and read by the server.

use crate::harness::Fleet;
use anyhow::{Context, Result, ensure};
use kvasir_engine::decode::EngineKind;
use kvasir_proto::pb;
use kvasir_sim::place;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

const WORKER: &str = "engine-0";
pub const BLOCK_SIZE: u32 = 4;

/// What the two engines do differently.
#[derive(Clone, Copy)]
pub struct Subject {
    pub name: &'static str,
    version: &'static str,
    engine: pb::Engine,
    host_medium: &'static str,
}

pub const SGLANG: Subject = Subject {
    name: "sglang",
    version: "0.5.23",
    engine: pb::Engine::Sglang,
    host_medium: "CPU_PINNED",
};

#[cfg(feature = "vllm")]
const VLLM: Subject =
    Subject { name: "vllm", version: "0.33.0", engine: pb::Engine::Vllm, host_medium: "CPU" };

fn scripts() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("engines")
}

/// A process that runs the engine's publisher.
pub struct Publisher {
    child: Child,
    commands: ChildStdin,
    answers: Lines<BufReader<ChildStdout>>,
}

/// Where a publisher is to be had and where it listens.
pub struct Place {
    subject: Subject,
    python: String,
    folder: String,
    live: u16,
    replay: u16,
}

impl Place {
    pub async fn prepare(subject: Subject) -> Result<Self> {
        let output = Command::new("python3")
            .arg(scripts().join("setup.py"))
            .args(["--engine", subject.name, "--version", subject.version])
            .arg("--cache")
            .arg(place::cache().join("engines"))
            .stderr(Stdio::inherit())
            .output()
            .await
            .context("run python3")?;
        ensure!(output.status.success(), "set-up of {} failed", subject.name);
        let output = String::from_utf8(output.stdout)?;
        let mut lines = output.lines().map(str::to_owned);
        let python = lines.next().context("python")?;
        let folder = lines.next().context("folder")?;
        Ok(Self { subject, python, folder, live: place::free_port()?, replay: place::free_port()? })
    }

    /// Addresses of its sockets: live, replay.
    pub fn sockets(&self) -> [String; 2] {
        [self.live, self.replay].map(|port| format!("tcp://127.0.0.1:{port}"))
    }

    /// A publisher that listens.
    pub async fn publisher(&self) -> Result<Publisher> {
        self.publisher_at(&format!("tcp://*:{}", self.live)).await
    }

    /// A publisher whose engine listens or, without a `*`, connects.
    async fn publisher_at(&self, endpoint: &str) -> Result<Publisher> {
        let mut child = Command::new(&self.python)
            .arg(scripts().join("publish.py"))
            .args(["--engine", self.subject.name, "--folder", &self.folder])
            .args(["--endpoint", endpoint])
            .args(["--replay", &format!("tcp://*:{}", self.replay)])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        let commands = child.stdin.take().context("standard input")?;
        let answers = BufReader::new(child.stdout.take().context("standard output")?).lines();
        let mut publisher = Publisher { child, commands, answers };
        publisher.expect("ready").await?;
        Ok(publisher)
    }
}

impl Publisher {
    async fn expect(&mut self, wanted: &str) -> Result<()> {
        let line = self.answers.next_line().await?.context("the publisher ended")?;
        ensure!(line == wanted, "the publisher printed {line:?} instead of {wanted:?}");
        Ok(())
    }

    /// Publishes one batch, the `number`th from 1.
    pub async fn publish(&mut self, number: u64, events: &[Value]) -> Result<()> {
        let line = format!("{}\n", Value::from(events));
        self.commands.write_all(line.as_bytes()).await?;
        self.expect(&number.to_string()).await
    }

    pub async fn kill(mut self) -> Result<()> {
        Ok(self.child.kill().await?)
    }
}

pub fn stored(medium: &str, parent: Option<i64>, hashes: &[i64], tokens: &[u32]) -> Value {
    json!({
        "type": "BlockStored", "block_hashes": hashes, "parent_block_hash": parent,
        "token_ids": tokens, "block_size": BLOCK_SIZE, "medium": medium,
        "group_idx": 0, "kv_cache_spec_kind": "full_attention",
    })
}

pub fn removed(medium: &str, hashes: &[i64]) -> Value {
    json!({"type": "BlockRemoved", "block_hashes": hashes, "medium": medium, "group_idx": 0})
}

async fn overlap(fleet: &mut Fleet, tokens: &[u32], salt: &str, tiers: &[pb::Tier]) -> Result<u32> {
    let request = pb::FindMatchesRequest {
        token_ids: tokens.to_vec(),
        cache_salt: salt.to_owned(),
        tiers: tiers.iter().map(|&tier| tier.into()).collect(),
        ..pb::FindMatchesRequest::default()
    };
    let found = fleet.find(request).await?;
    Ok(found.first().map_or(0, |&(_, blocks)| blocks))
}

async fn check(subject: Subject) -> Result<()> {
    let place = Place::prepare(subject).await?;
    let mut fleet = Fleet::start().await?;
    let prompt: Vec<u32> = (2_001..2_017).collect();
    let first = &prompt[..4];
    let second = &prompt[4..8];
    let third = &prompt[8..12];
    let fourth = &prompt[12..];
    let host = subject.host_medium;

    // Published before anybody listens: the server must ask for it.
    let mut publisher = place.publisher().await?;
    publisher.publish(1, &[stored("GPU", None, &[-77], first)]).await?;
    publisher.publish(2, &[stored("GPU", Some(-77), &[5], second)]).await?;
    let [live, replay] = place.sockets();
    fleet.register(WORKER, subject.engine, BLOCK_SIZE, (&live, &replay)).await?;
    fleet.wait_exact(WORKER, 1).await?;
    ensure!(overlap(&mut fleet, &prompt, "", &[]).await? == 2, "two blocks from the replay");

    // Live: two blocks in one event, one of them in host memory as well, then removals.
    let both = [third, fourth].concat();
    publisher.publish(3, &[stored("GPU", Some(5), &[6, i64::MIN], &both)]).await?;
    publisher.publish(4, &[stored(host, None, &[-77], first)]).await?;
    publisher.publish(5, &[removed("GPU", &[-77])]).await?;
    fleet.wait_exact(WORKER, 4).await?;
    ensure!(overlap(&mut fleet, &prompt, "", &[]).await? == 4, "the first block is on the host");
    let device = [pb::Tier::Device];
    ensure!(overlap(&mut fleet, &prompt, "", &device).await? == 0, "and not on the device");
    publisher.publish(6, &[removed(host, &[-77]), removed("GPU", &[6])]).await?;
    fleet.wait_exact(WORKER, 5).await?;
    ensure!(overlap(&mut fleet, &prompt, "", &[]).await? == 0, "a hole at the start");
    ensure!(fleet.held(WORKER).await?.len() == 2, "the rest is still held");

    // Salted content answers salted queries only; a clear takes everything.
    publisher.publish(7, &[json!({"type": "AllBlocksCleared"})]).await?;
    let mut salted = stored("GPU", None, &[9], first);
    salted["cache_salt"] = json!("tenant-a");
    salted["extra_keys"] = json!([["tenant-a"]]);
    publisher.publish(8, &[salted]).await?;
    fleet.wait_exact(WORKER, 7).await?;
    ensure!(overlap(&mut fleet, first, "", &[]).await? == 0, "unsalted");
    ensure!(overlap(&mut fleet, first, "tenant-b", &[]).await? == 0, "another salt");
    ensure!(overlap(&mut fleet, first, "tenant-a", &[]).await? == 1, "its own salt");

    // A new life under the same address: what the old one held is gone.
    publisher.kill().await?;
    let mut publisher = place.publisher().await?;
    publisher.publish(1, &[stored("GPU", None, &[1], first)]).await?;
    publisher.publish(2, &[stored("GPU", Some(1), &[2], second)]).await?;
    fleet.wait_exact(WORKER, 1).await?;
    ensure!(overlap(&mut fleet, &prompt, "", &[]).await? == 2, "the new life's blocks");
    ensure!(overlap(&mut fleet, first, "tenant-a", &[]).await? == 0, "the old life's are gone");
    ensure!(fleet.held(WORKER).await?.len() == 2, "and nothing else");

    publisher.kill().await?;
    fleet.stop().await;
    Ok(())
}

/// An engine whose endpoint has no `*` connects to whoever listens there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sglangs_own_publisher_connects_to_a_server_that_listens() -> Result<()> {
    let place = Place::prepare(SGLANG).await?;
    let mut fleet = Fleet::start().await?;
    let [live, replay] = place.sockets();
    fleet.register_bound(WORKER, SGLANG.engine, BLOCK_SIZE, (&live, &replay)).await?;
    let mut publisher = place.publisher_at(&live).await?;
    let prompt: Vec<u32> = (1..9).collect();
    publisher.publish(1, &[stored("GPU", None, &[-7], &prompt[..4])]).await?;
    publisher.publish(2, &[stored("GPU", Some(-7), &[8], &prompt[4..])]).await?;
    fleet.wait_exact(WORKER, 1).await?;
    ensure!(overlap(&mut fleet, &prompt, "", &[]).await? == 2, "both blocks");
    publisher.kill().await?;
    fleet.stop().await;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sglangs_own_publisher() -> Result<()> {
    check(SGLANG).await
}

/// Through an agent the index learns just what it learns from the engine itself, across a kill -9 of
/// the engine.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sglangs_own_publisher_through_an_agent() -> Result<()> {
    const AGENT: &str = "engine-0-by-agent";
    let place = Place::prepare(SGLANG).await?;
    let mut fleet = Fleet::start().await?;
    let prompt: Vec<u32> = (3_001..3_017).collect();
    let mut publisher = place.publisher().await?;
    publisher.publish(1, &[stored("GPU", None, &[-77], &prompt[..4])]).await?;
    let [live, replay] = place.sockets();
    fleet.register(WORKER, SGLANG.engine, BLOCK_SIZE, (&live, &replay)).await?;
    let sockets = (&*live, &*replay);
    let mut relayed = fleet.relay(EngineKind::Sglang, BLOCK_SIZE, sockets, AGENT).await?;
    publisher.publish(2, &[stored("GPU", Some(-77), &[5, 6], &prompt[4..12])]).await?;
    publisher.publish(3, &[stored(SGLANG.host_medium, None, &[-77], &prompt[..4])]).await?;
    publisher.publish(4, &[removed("GPU", &[-77, 6])]).await?;
    // Another block size than agreed: dropped, and said.
    let mut large = stored("GPU", Some(5), &[8, 9], &prompt[..16]);
    large["block_size"] = json!(8);
    publisher.publish(5, &[large]).await?;
    relayed.wait_exact(4).await?;
    ensure!(fleet.chains(AGENT).await?.len() == 2, "one on the host, one on the device");
    let problem = relayed.report()?.problem.context("a complaint")?;
    ensure!(problem.contains("states 8 tokens") && problem.contains("configured for 4"));

    publisher.kill().await?;
    let mut publisher = place.publisher().await?;
    publisher.publish(1, &[stored("GPU", None, &[7, 8], &prompt[8..])]).await?;
    fleet.wait_exact(WORKER, 0).await?;
    relayed.wait_exact(0).await?;
    fleet.ensure_equal(WORKER, AGENT).await?;
    ensure!(fleet.chains(AGENT).await?.len() == 2, "the old life's blocks are gone");
    ensure!(relayed.report()?.counts.incarnations == 2, "{:?}", relayed.report()?);
    publisher.kill().await?;
    fleet.stop().await;
    Ok(())
}

#[cfg(feature = "vllm")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn vllms_own_publisher() -> Result<()> {
    check(VLLM).await
}
