//! Storage events: what an advisor knows is what the agent's tiers have, whatever is killed between them.

use crate::engine::{Engine, hashes, over_socket, prompt};
use crate::place::{BLOCK_BYTES, LOOK, MODEL, PATIENCE, Place, WORKER};
use anyhow::{Context, Result, ensure};
use kvasir_proto::pb;
use kvasir_tests::demo::metrics;
use kvasir_tests::nats::NatsServer;
use kvasir_tests::place::free_port;
use kvasir_tests::server::binary_of;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;
use tokio::process::{Child, Command};
use tokio::time::{Instant, sleep, timeout};

/// Name of the volume in storage events.
const VOLUME: &str = "volume:shared";

/// Blocks by location, as sequence hashes.
type Stored = BTreeMap<&'static str, BTreeSet<u64>>;

struct Advisor {
    child: Child,
    http: SocketAddr,
}

impl Advisor {
    async fn start(nats: &str, flags: &[&str]) -> Result<Self> {
        let http = SocketAddr::from(([127, 0, 0, 1], free_port()?));
        let child = Command::new(binary_of("storage-advisor")?)
            .args(["--nats-url", nats, "--http-listen", &http.to_string()])
            .args(["--ask-interval", "100ms", "--log-filter", "warn"])
            .args(flags)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .kill_on_drop(true)
            .spawn()?;
        let advisor = Self { child, http };
        let listens = async {
            while metrics::get(http, "/livez").await.is_err() {
                sleep(LOOK).await;
            }
        };
        timeout(PATIENCE, listens).await.context("the advisor does not listen")?;
        Ok(advisor)
    }

    /// What it knows of the worker's locations, if it lacks nothing.
    async fn known(&self) -> Result<Option<Stored>> {
        let mut known = Stored::new();
        for location in ["host", "disk", VOLUME] {
            let asked = json!({ "model": MODEL, "worker": WORKER, "location": location });
            let (status, text) = metrics::post(self.http, "/tree", &asked.to_string()).await?;
            if status != 200 {
                return Ok(None);
            }
            let place: Value = serde_json::from_str(&text)?;
            if place["state"] != "exact" {
                return Ok(None);
            }
            let hashes = place["sequence_hashes"].as_array().context("hashes")?;
            let hash = |at: &Value| u64::from_str_radix(at.as_str().unwrap_or("?"), 16);
            known.insert(location, hashes.iter().map(hash).collect::<Result<_, _>>()?);
        }
        Ok(Some(known))
    }

    /// Waits until it knows exactly what is stored.
    async fn until_known(&self, stored: &Stored) -> Result<()> {
        let equal = async {
            while self.known().await?.as_ref() != Some(stored) {
                sleep(LOOK).await;
            }
            anyhow::Ok(())
        };
        match timeout(PATIENCE, equal).await {
            Ok(ended) => ended,
            Err(_late) => {
                let known = self.known().await?;
                anyhow::bail!("the advisor knows {known:?}, and stored are {stored:?}")
            }
        }
    }
}

/// What the tiers have of these prompts, once nothing is to be copied.
async fn stored(engine: &mut Engine, prompts: &[Vec<u64>]) -> Result<Stored> {
    engine.until_copied().await?;
    let mut stored: Stored = ["host", "disk", VOLUME].map(|at| (at, BTreeSet::new())).into();
    for sequence in prompts.iter().flat_map(|locals| hashes(locals)) {
        for tier in engine.tiers(sequence).await? {
            let location = match tier {
                pb::BlockTier::Host => "host",
                pb::BlockTier::Disk => "disk",
                pb::BlockTier::Volume => VOLUME,
                other => anyhow::bail!("{other:?} is no tier of this test"),
            };
            stored.entry(location).or_default().insert(sequence);
        }
    }
    Ok(stored)
}

async fn save(engine: &mut Engine, prompts: &mut Vec<Vec<u64>>, count: u64) -> Result<()> {
    for _ in 0..count {
        // Blocks that are copied do not give way.
        engine.until_copied().await?;
        let locals = prompt(prompts.len() as u64 + 1, 4);
        engine.save(&locals).await?;
        prompts.push(locals);
    }
    Ok(())
}

/// A program that appends what it reads to a file.
fn hook(folder: &Path) -> Result<(PathBuf, PathBuf)> {
    let program = folder.join("hook");
    let told = folder.join("told");
    fs::write(&program, format!("#!/bin/sh\nexec cat >> '{}'\n", told.display()))?;
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755))?;
    Ok((program, told))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_advisor_is_right_again_whatever_was_killed() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let volume = tempfile::tempdir()?;
    let mut nats = NatsServer::start(folder.path()).await?;
    let (url, volume) = (nats.url(), format!("file://{}", volume.path().display()));
    let volume_bytes = (256 * BLOCK_BYTES).to_string();
    let flags = ["--nats-url", &url, "--storage-events", "--storage-batch-interval", "100ms"];
    let tiers = ["--blocks-volume", &volume, "--blocks-volume-bytes", &volume_bytes];
    let named = ["--storage-volume-name", "shared"];
    let mut place = Place::start(&[&flags[..], &tiers, &named].concat()).await?;
    let mut engine = Engine::open(over_socket(&place.socket()).await?).await?;
    let mut prompts = Vec::new();
    save(&mut engine, &mut prompts, 3).await?;
    let mut advisor = Advisor::start(&url, &[]).await?;
    advisor.until_known(&stored(&mut engine, &prompts).await?).await?;

    // More than host memory has room for: blocks are removed there, too.
    save(&mut engine, &mut prompts, 6).await?;
    advisor.until_known(&stored(&mut engine, &prompts).await?).await?;

    advisor.child.kill().await?;
    save(&mut engine, &mut prompts, 3).await?;
    let (program, told) = hook(folder.path())?;
    let hook = ["--hook", &program.display().to_string()];
    let often = ["--advice-interval", "100ms", "--cold-after", "0s", "--hot-uses", "100"];
    let advisor = Advisor::start(&url, &[&hook[..], &often].concat()).await?;
    let now = stored(&mut engine, &prompts).await?;
    ensure!(now.values().all(|blocks| !blocks.is_empty()), "each tier has some: {now:?}");
    advisor.until_known(&now).await?;
    until_advised(&told, &now).await?;

    nats.kill().await;
    save(&mut engine, &mut prompts, 3).await?;
    let unheard = stored(&mut engine, &prompts).await?;
    assert_ne!(advisor.known().await?.as_ref(), Some(&unheard), "nobody could be told");
    nats.restart().await?;
    advisor.until_known(&unheard).await?;

    // Host memory is empty after that.
    place.restart().await?;
    let mut engine = Engine::open(over_socket(&place.socket()).await?).await?;
    save(&mut engine, &mut prompts, 1).await?;
    advisor.until_known(&stored(&mut engine, &prompts).await?).await?;
    assert!(place.metric("kvasir_agent_storage_images_total", "").await? >= 1.0);
    assert_eq!(place.metric("kvasir_agent_storage_overflows_total", "").await? as u64, 0);
    place.stop().await;
    Ok(())
}

/// Waits until the hook was told to move a cold block of host memory to the disk.
async fn until_advised(told: &Path, stored: &Stored) -> Result<()> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let text = fs::read_to_string(told).unwrap_or_default();
        let advice = text.lines().map(serde_json::from_str::<Value>).collect::<Result<Vec<_>, _>>();
        let is_right = |at: &&Value| {
            let hash = at["sequence_hash"].as_str().map(|hash| u64::from_str_radix(hash, 16));
            (&at["kind"], &at["from"], &at["to"])
                == (&json!("demotion"), &json!("host"), &json!("disk"))
                && matches!(hash, Some(Ok(hash)) if stored["host"].contains(&hash))
        };
        // The last line may be written at the moment.
        if advice.is_ok_and(|advice| advice.iter().any(|at| is_right(&at))) {
            return Ok(());
        }
        ensure!(Instant::now() < deadline, "the hook was told {text:?}");
        sleep(Duration::from_millis(20)).await;
    }
}
