//! The example subscriber of storage events knows exactly which blocks the agent's tiers have, whatever is killed.

use crate::engine::{Engine, hashes, over_socket, prompt};
use crate::place::{BLOCK_BYTES, MODEL, PATIENCE, Place, WORKER};
use anyhow::{Result, anyhow, ensure};
use example::Subscriber;
use kvasir_process::nats::{NatsAccess, NatsServers};
use kvasir_proto::pb;
use kvasir_tests::nats::NatsServer;
use std::collections::{BTreeMap, BTreeSet};
use tokio::time::timeout;

#[expect(dead_code, reason = "the test calls what its main calls")]
#[path = "../../../kvbm-agent/examples/storage_subscriber.rs"]
pub(crate) mod example;

/// Name of the volume in storage events.
const VOLUME: &str = "volume:shared";

/// Blocks by location, as sequence hashes.
type Stored = BTreeMap<String, BTreeSet<u64>>;

async fn subscribe(url: &str) -> Result<Subscriber> {
    let servers = NatsServers::read(&url.to_owned().into(), NatsAccess::default())?;
    Subscriber::connect(&servers).await.map_err(|error| anyhow!("{error}"))
}

/// The worker's blocks that the subscriber knows of, in the locations that it knows completely.
fn known(subscriber: &Subscriber) -> Stored {
    let mut known = Stored::new();
    for (place, blocks, is_exact) in subscriber.index.places() {
        let address = &place.address;
        assert_eq!((address.partition.model(), address.worker.as_str()), (MODEL, WORKER));
        if is_exact {
            known.insert(place.location.clone(), blocks.keys().map(|hash| hash.0).collect());
        }
    }
    known
}

/// Runs the subscriber until it knows exactly the stored blocks.
async fn run_until_known(subscriber: &mut Subscriber, stored: &Stored) -> Result<()> {
    let run = async {
        while known(subscriber) != *stored {
            subscriber.step().await.map_err(|error| anyhow!("{error}"))?;
        }
        anyhow::Ok(())
    };
    match timeout(PATIENCE, run).await {
        Ok(ended) => ended,
        Err(_late) => {
            Err(anyhow!("the subscriber knows {:?}, and stored are {stored:?}", known(subscriber)))
        }
    }
}

/// What the tiers have of these prompts, once nothing is to be copied.
async fn stored(engine: &mut Engine, prompts: &[Vec<u64>]) -> Result<Stored> {
    engine.until_copied().await?;
    let locations = ["host", "disk", VOLUME];
    let mut stored: Stored = locations.map(|at| (at.to_owned(), BTreeSet::new())).into();
    for sequence in prompts.iter().flat_map(|locals| hashes(locals)) {
        for tier in engine.tiers(sequence).await? {
            let location = match tier {
                pb::BlockTier::Host => "host",
                pb::BlockTier::Disk => "disk",
                pb::BlockTier::Volume => VOLUME,
                other => anyhow::bail!("{other:?} is no tier of this test"),
            };
            stored.entry(location.to_owned()).or_default().insert(sequence);
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_subscriber_knows_all_blocks_whatever_was_killed() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let volume = tempfile::tempdir()?;
    let mut nats = NatsServer::start(folder.path()).await?;
    let url = nats.url();
    let volume_bytes = 256 * BLOCK_BYTES;
    let volume = format!("url=file://{},bytes={volume_bytes},name=shared", volume.path().display());
    let events = "enabled=true,interval=100ms";
    let flags = ["--nats-url", &url, "--storage-events", events, "--blocks-volume", &volume];
    let mut place = Place::start(&flags).await?;
    let mut engine = Engine::open(over_socket(&place.socket()).await?).await?;
    let mut prompts = Vec::new();
    save(&mut engine, &mut prompts, 3).await?;
    let mut subscriber = subscribe(&url).await?;
    let now = stored(&mut engine, &prompts).await?;
    run_until_known(&mut subscriber, &now).await?;

    // More than host memory has room for: blocks are removed there, too.
    save(&mut engine, &mut prompts, 6).await?;
    let now = stored(&mut engine, &prompts).await?;
    run_until_known(&mut subscriber, &now).await?;

    drop(subscriber);
    save(&mut engine, &mut prompts, 3).await?;
    let mut subscriber = subscribe(&url).await?;
    let now = stored(&mut engine, &prompts).await?;
    ensure!(now.values().all(|blocks| !blocks.is_empty()), "each tier has some: {now:?}");
    run_until_known(&mut subscriber, &now).await?;
    check_report(&subscriber, &now)?;

    nats.kill().await;
    save(&mut engine, &mut prompts, 3).await?;
    let now = stored(&mut engine, &prompts).await?;
    nats.restart().await?;
    run_until_known(&mut subscriber, &now).await?;

    // Host memory is empty after that.
    place.restart().await?;
    let mut engine = Engine::open(over_socket(&place.socket()).await?).await?;
    save(&mut engine, &mut prompts, 1).await?;
    let now = stored(&mut engine, &prompts).await?;
    run_until_known(&mut subscriber, &now).await?;
    assert!(place.metric("kvasir_agent_storage_images_total", "").await? >= 1.0);
    assert_eq!(place.metric("kvasir_agent_storage_overflows_total", "").await? as u64, 0);
    place.stop().await;
    Ok(())
}

/// The report has a line for each location, with its number of blocks and bytes.
fn check_report(subscriber: &Subscriber, stored: &Stored) -> Result<()> {
    let report = subscriber.index.report(subscriber.now());
    ensure!(report.lines().count() == stored.len(), "{report}");
    for (location, blocks) in stored {
        let count = blocks.len();
        let bytes = count * BLOCK_BYTES;
        let part =
            format!(" {location}: {count} blocks, {bytes} bytes; least recently used leaf: ");
        ensure!(report.lines().any(|line| line.contains(&part)), "{part} in {report}");
    }
    Ok(())
}
