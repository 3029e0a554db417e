//! What a server that keeps checkpoints knows after a restart, and says when it cannot keep them.

use anyhow::{Context, Result, ensure};
use indexer_server::partitions::RegisteredBy;
use indexer_server::snapshot::{Change, SnapshotConfig, SnapshotStore, WorkerState};
use kvasir_feed::uplink::{SourceIdentity, Uplink};
use kvasir_index::WorkerImage;
use kvasir_proto::pb;
use kvasir_proto::types::{
    BlockName, Incarnation, KvEvent, LocalHash, PartitionKey, StoredBlock, Tier, WorkerId,
};
use kvasir_sim::client::{self, Indexer};
use kvasir_sim::demo::metrics;
use kvasir_sim::engine::{EngineConfig, MockEngine, Prompt};
use kvasir_sim::server::Server;
use prost::Message;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;
use tempfile::TempDir;
use tokio::time::{sleep, timeout};
use tonic::Code;

const MODEL: &str = "m";
const BLOCK_SIZE: u32 = 16;
const BLOCKS: u64 = 200;
/// Nothing in these tests takes nearly as long.
const PATIENCE: Duration = Duration::from_secs(30);
/// How often a condition is looked at that nothing announces.
const LOOK: Duration = Duration::from_millis(20);

fn anywhere() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 0))
}

/// A server that writes checkpoints only when it is asked to.
async fn start(folder: &Path) -> Result<(Server, Indexer)> {
    let folder = folder.to_str().context("a path in UTF-8")?;
    let flags = ["--checkpoint-dir", folder, "--checkpoint-interval", "86400s"];
    let server = Server::start_with(anywhere(), anywhere(), &flags).await?;
    let client = client::connect(server.addresses.grpc).await?;
    Ok((server, client))
}

async fn register(client: &mut Indexer, worker_id: &str) -> Result<bool> {
    let request = pb::RegisterWorkerRequest {
        worker_id: worker_id.to_owned(),
        model: MODEL.to_owned(),
        block_size: BLOCK_SIZE,
        ..Default::default()
    };
    Ok(client.register_worker(request).await?.into_inner().created)
}

async fn open(server: &Server, worker_id: &str, incarnation: u128) -> Result<Uplink> {
    let source = SourceIdentity {
        partition: PartitionKey::new(MODEL, "")?,
        worker: WorkerId::new(worker_id)?,
        source: "agent".to_owned(),
        block_size: BLOCK_SIZE,
        incarnation: Incarnation(incarnation),
    };
    Ok(Uplink::open(&format!("http://{}", server.addresses.grpc), source).await?)
}

fn stored(from: u64, to: u64) -> KvEvent {
    let block = |at: u64| StoredBlock { name: BlockName(at + 1), local: LocalHash(at * 7 + 3) };
    let parent = from.checked_sub(1).map(|before| block(before).name);
    KvEvent::Stored { parent, tier: Tier::Device, blocks: (from..to).map(block).collect() }
}

/// Blocks of the chain that the only rank that has any matches, if one does.
async fn matched(client: &mut Indexer) -> Result<Option<u32>> {
    let request = pb::FindMatchesRequest {
        model: MODEL.to_owned(),
        local_hashes: (0..BLOCKS).map(|at| at * 7 + 3).collect(),
        ..Default::default()
    };
    let answer = client.find_matches(request).await?.into_inner();
    ensure!(answer.matches.len() <= 1, "{answer:?}");
    Ok(answer.matches.first().map(|found| found.matched_blocks))
}

async fn checkpoint(client: &mut Indexer) -> Result<pb::CreateCheckpointResponse> {
    let request = pb::CreateCheckpointRequest { compact: false };
    Ok(client.create_checkpoint(request).await?.into_inner())
}

#[tokio::test]
async fn a_publisher_goes_on_where_the_checkpoint_was() -> Result<()> {
    let folder = TempDir::new()?;
    let (mut server, mut client) = start(folder.path()).await?;
    ensure!(register(&mut client, "w").await?, "it is new");
    let mut uplink = open(&server, "w", 1).await?;
    for at in 0..4 {
        uplink.publish(0, &[stored(at * 50, (at + 1) * 50)]).await?;
        if at == 2 {
            let written = checkpoint(&mut client).await?;
            ensure!((written.workers, written.blocks) == (1, 150), "{written:?}");
            ensure!(checkpoint(&mut client).await?.workers == 0, "nothing has changed since");
        }
    }
    server.kill().await;

    let (mut server, mut client) = start(folder.path()).await?;
    ensure!(!register(&mut client, "w").await?, "it is known");
    // Waits until the worker is back.
    let mut uplink = open(&server, "w", 1).await?;
    ensure!(uplink.next_sequence() == Some(3), "{:?}", uplink.next_sequence());
    ensure!(matched(&mut client).await? == Some(150), "what the checkpoint has");
    uplink.publish(0, &[stored(150, 200)]).await?;
    ensure!(matched(&mut client).await? == Some(200), "and what came after it");
    server.stop().await;

    // Stopped in order, it has written the rest.
    let (mut server, mut client) = start(folder.path()).await?;
    let uplink = open(&server, "w", 1).await?;
    ensure!(uplink.next_sequence() == Some(4), "{:?}", uplink.next_sequence());
    ensure!(matched(&mut client).await? == Some(200), "all of it");
    metrics::ready(server.addresses.http).await?;
    // Another life begins empty.
    drop(uplink);
    let reborn = open(&server, "w", 2).await?;
    ensure!(reborn.next_sequence() == Some(0), "{:?}", reborn.next_sequence());
    ensure!(matched(&mut client).await?.is_none(), "nothing of the old life");
    server.stop().await;
    Ok(())
}

#[tokio::test]
async fn registrations_and_removals_are_on_disk_when_they_are_answered() -> Result<()> {
    let folder = TempDir::new()?;
    let (mut server, mut client) = start(folder.path()).await?;
    for worker_id in ["gone", "stays"] {
        register(&mut client, worker_id).await?;
    }
    let request = pb::RemoveWorkerRequest {
        worker_id: "gone".to_owned(),
        model: MODEL.to_owned(),
        tenant: String::new(),
    };
    client.remove_worker(request).await?;
    server.kill().await;
    let (mut server, mut client) = start(folder.path()).await?;
    let workers = client::list_workers(&mut client, pb::ListWorkersRequest::default()).await?;
    let ids: Vec<_> = workers.into_iter().map(|worker| worker.worker_id).collect();
    ensure!(ids == ["stays"], "{ids:?}");
    server.stop().await;
    Ok(())
}

#[tokio::test]
async fn a_configured_worker_that_differs_begins_empty() -> Result<()> {
    let folder = TempDir::new()?;
    let (mut server, mut client) = start(folder.path()).await?;
    register(&mut client, "w").await?;
    open(&server, "w", 1).await?.publish(0, &[stored(0, 200)]).await?;
    checkpoint(&mut client).await?;
    server.kill().await;
    let folder_text = folder.path().to_str().context("a path in UTF-8")?;
    let worker = format!("id=w,model={MODEL},block-size=32");
    let flags = ["--checkpoint-dir", folder_text, "--worker", &worker];
    let mut server = Server::start_with(anywhere(), anywhere(), &flags).await?;
    let mut client = client::connect(server.addresses.grpc).await?;
    let known = client::find_worker(&mut client, MODEL, "w").await?.context("it is configured")?;
    ensure!(known.block_size == 32 && known.ranks.is_empty(), "{known:?}");
    server.stop().await;
    Ok(())
}

/// A server with these workers configured, with so many tokens a block each.
async fn start_configured(folder: &Path, workers: &[(&str, u32)]) -> Result<(Server, Indexer)> {
    let folder = folder.to_str().context("a path in UTF-8")?;
    let spec =
        |(id, size): &(&str, u32)| format!("--worker=id={id},model={MODEL},block-size={size}");
    let specs: Vec<_> = workers.iter().map(spec).collect();
    let mut flags = vec!["--checkpoint-dir", folder, "--checkpoint-interval", "86400s"];
    flags.extend(specs.iter().map(String::as_str));
    let server = Server::start_with(anywhere(), anywhere(), &flags).await?;
    let client = client::connect(server.addresses.grpc).await?;
    Ok((server, client))
}

/// Ids and block sizes of all workers.
async fn workers(client: &mut Indexer) -> Result<Vec<(String, u32)>> {
    let list = client.list_workers(pb::ListWorkersRequest::default()).await?.into_inner();
    Ok(list.workers.into_iter().map(|at| (at.worker_id, at.block_size)).collect())
}

fn named(workers: &[(&str, u32)]) -> Vec<(String, u32)> {
    workers.iter().map(|&(id, size)| (id.to_owned(), size)).collect()
}

/// Waits for a line of the server's log that has all of these.
async fn logged(server: &Server, parts: &[&str]) -> Result<()> {
    let has_all = |line: &str| parts.iter().all(|part| line.contains(part));
    let found = async {
        while !server.output().lines().any(has_all) {
            sleep(LOOK).await;
        }
    };
    let found = timeout(PATIENCE, found).await;
    found.with_context(|| format!("no line with {parts:?}:\n{}", server.output()))
}

#[tokio::test]
async fn workers_that_are_not_configured_any_more_go_and_registered_ones_stay() -> Result<()> {
    let folder = TempDir::new()?;
    let size = BLOCK_SIZE;
    let configured = [("both", size), ("gone", size), ("kept", size)];
    let (mut server, mut client) = start_configured(folder.path(), &configured).await?;
    ensure!(register(&mut client, "registered").await?, "it is new");
    checkpoint(&mut client).await?;
    // Nothing of the worker changes but who wants it.
    ensure!(!register(&mut client, "both").await?, "it is configured so");
    server.kill().await;

    let (mut server, mut client) = start_configured(folder.path(), &[("kept", size)]).await?;
    let expected = named(&[("both", size), ("kept", size), ("registered", size)]);
    ensure!(workers(&mut client).await? == expected, "{:?}", workers(&mut client).await?);
    logged(&server, &["gone (model m)", "no longer configured"]).await?;
    server.stop().await;
    // Who was registered stays so, although it is configured now.
    let both = [("registered", size)];
    let (mut server, mut client) = start_configured(folder.path(), &both).await?;
    let expected = named(&[("both", size), ("registered", size)]);
    ensure!(workers(&mut client).await? == expected, "{:?}", workers(&mut client).await?);
    server.stop().await;
    let (mut server, mut client) = start_configured(folder.path(), &[]).await?;
    ensure!(workers(&mut client).await? == expected, "{:?}", workers(&mut client).await?);
    server.stop().await;
    Ok(())
}

#[tokio::test]
async fn a_configuration_that_contradicts_the_checkpoint_holds() -> Result<()> {
    let folder = TempDir::new()?;
    let before = [("v0", 32), ("v1", 32)];
    let (mut server, mut client) = start_configured(folder.path(), &before).await?;
    checkpoint(&mut client).await?;
    server.kill().await;
    let (mut server, mut client) = start_configured(folder.path(), &[("v0", 16)]).await?;
    ensure!(workers(&mut client).await? == named(&[("v0", 16)]), "{:?}", server.output());
    server.stop().await;
    Ok(())
}

#[tokio::test]
async fn a_configured_worker_that_contradicts_registered_ones_is_left_out() -> Result<()> {
    let folder = TempDir::new()?;
    let (mut server, mut client) = start(folder.path()).await?;
    register(&mut client, "v1").await?;
    server.kill().await;
    let configured = [("v0", 2 * BLOCK_SIZE)];
    let (mut server, mut client) = start_configured(folder.path(), &configured).await?;
    ensure!(workers(&mut client).await? == named(&[("v1", BLOCK_SIZE)]), "{:?}", server.output());
    let both =
        ["ERROR", "v0 (model m)", "block_size is 32", "have 16", "v1", "RemoveWorker", "--worker"];
    logged(&server, &both).await?;
    metrics::ready(server.addresses.http).await?;
    let request = pb::RemoveWorkerRequest {
        worker_id: "v1".to_owned(),
        model: MODEL.to_owned(),
        tenant: String::new(),
    };
    client.remove_worker(request).await?;
    server.kill().await;
    // As the log says.
    let (mut server, mut client) = start_configured(folder.path(), &configured).await?;
    ensure!(workers(&mut client).await? == named(&configured), "{:?}", server.output());
    server.stop().await;
    Ok(())
}

/// Puts a worker into a folder as an older server did, which did not say who wants it.
fn store_of_old(folder: &Path, worker_id: &str) -> Result<()> {
    let mut store = SnapshotStore::open(&SnapshotConfig::new(folder.to_owned()))?.store;
    let registration = pb::RegisterWorkerRequest {
        worker_id: worker_id.to_owned(),
        model: MODEL.to_owned(),
        block_size: BLOCK_SIZE,
        ..Default::default()
    };
    let worker = WorkerId::new(worker_id)?;
    let image = WorkerImage { worker, whole: true, sources: Vec::new(), ranks: Vec::new() };
    let state = WorkerState {
        partition: &PartitionKey::new(MODEL, "")?,
        image: &image,
        registration: &registration.encode_to_vec(),
        registered_by: RegisteredBy::Unknown,
        held_blocks: 0,
    };
    Ok(store.write(&[Change::Store(state)])?)
}

#[tokio::test]
async fn workers_of_older_checkpoints_are_kept_and_named_until_somebody_wants_them() -> Result<()> {
    let folder = TempDir::new()?;
    for worker_id in ["configured", "nobodys", "wanted"] {
        store_of_old(folder.path(), worker_id)?;
    }
    let configured = [("configured", BLOCK_SIZE)];
    let (mut server, mut client) = start_configured(folder.path(), &configured).await?;
    let all = [("configured", BLOCK_SIZE), ("nobodys", BLOCK_SIZE), ("wanted", BLOCK_SIZE)];
    ensure!(workers(&mut client).await? == named(&all), "{:?}", server.output());
    logged(&server, &["WARN", "nobodys (model m), wanted (model m)", "RemoveWorker"]).await?;
    register(&mut client, "wanted").await?;
    server.stop().await;
    // From now on it is known of two of them.
    let (mut server, mut client) = start_configured(folder.path(), &[]).await?;
    ensure!(workers(&mut client).await? == named(&all[1..]), "{:?}", server.output());
    logged(&server, &["WARN", "workers=\"nobodys (model m)\"", "RemoveWorker"]).await?;
    server.stop().await;
    Ok(())
}

#[tokio::test]
async fn who_cannot_keep_checkpoints_says_so() -> Result<()> {
    let mut server = Server::start_anywhere().await?;
    let mut client = client::connect(server.addresses.grpc).await?;
    let request = pb::CreateCheckpointRequest::default();
    let refused = client.create_checkpoint(request).await.expect_err("no folder");
    ensure!(refused.code() == Code::FailedPrecondition, "{refused}");
    ensure!(refused.message().contains("--checkpoint-dir"), "{refused}");
    server.stop().await;

    let folder = TempDir::new()?;
    let (mut server, _client) = start(folder.path()).await?;
    let error = start(folder.path()).await.err().context("the folder is in use")?.to_string();
    ensure!(error.contains("checkpoint-dir") && error.contains("another process"), "{error}");
    server.stop().await;
    Ok(())
}

/// An engine states the kind of a group with what it stores, and not with what it removes.
#[tokio::test]
async fn the_main_group_is_known_after_a_restart_whatever_its_number() -> Result<()> {
    let engine = MockEngine::start(EngineConfig {
        block_size: BLOCK_SIZE as usize,
        capacity_blocks: 64,
        sliding_window: Some(64),
        window_first: true,
        ..EngineConfig::default()
    })
    .await?;
    let endpoint = engine.endpoint();
    let replay = engine.replay_endpoint();
    let worker = format!(
        "id=w,model={MODEL},block-size={BLOCK_SIZE},engine=vllm,endpoint={endpoint},replay={replay}"
    );
    let folder = TempDir::new()?;
    let path = folder.path().to_str().context("a path in UTF-8")?;
    let flags = ["--checkpoint-dir", path, "--checkpoint-interval", "86400s", "--worker", &worker];
    let prompt = |first| Prompt { tokens: (first..first + 160).collect(), answer: vec![7] };
    engine.run(prompt(0)).await?;
    let mut server = Server::start_with(anywhere(), anywhere(), &flags).await?;
    let mut client = client::connect(server.addresses.grpc).await?;
    let blocks = held_once_exact(&mut client, "w").await?;
    ensure!(blocks == 10, "{blocks} blocks");
    checkpoint(&mut client).await?;
    server.kill().await;

    // The first blocks make room for others: removals come before anything says again which group is which.
    for at in 1..6 {
        engine.run(prompt(at * 1_000)).await?;
    }
    let mut server = Server::start_with(anywhere(), anywhere(), &flags).await?;
    let mut client = client::connect(server.addresses.grpc).await?;
    held_once_exact(&mut client, "w").await?;
    let held = client::dump_device_copies(&mut client, MODEL, "w").await?;
    let truth = engine.truth().await?.copies;
    ensure!(truth.len() < 60, "nothing was removed: {truth:?}");
    ensure!(held == truth, "{held:?} instead of {truth:?}");
    server.stop().await;
    engine.stop().await;
    Ok(())
}

/// A checkpoint does not say how old a block is.
#[tokio::test]
async fn blocks_with_a_time_to_live_do_not_come_back_from_a_checkpoint() -> Result<()> {
    let config = EngineConfig { block_size: BLOCK_SIZE as usize, ..EngineConfig::default() };
    let config = config.today();
    let engines = [MockEngine::start(config.clone()).await?, MockEngine::start(config).await?];
    let worker = |id: &str, engine: &MockEngine, more: &str| {
        let endpoint = engine.endpoint();
        let replay = engine.replay_endpoint();
        format!(
            "id={id},model={MODEL},block-size={BLOCK_SIZE},engine=vllm,endpoint={endpoint},replay={replay}{more}"
        )
    };
    let workers = [worker("ages", &engines[0], ",ttl.GPU=1h"), worker("stays", &engines[1], "")];
    let folder = TempDir::new()?;
    let path = folder.path().to_str().context("a path in UTF-8")?;
    let mut flags = vec!["--checkpoint-dir", path, "--checkpoint-interval", "86400s"];
    workers.iter().for_each(|worker| flags.extend(["--worker", worker]));
    let prompt = Prompt { tokens: (0..160).collect(), answer: vec![7] };
    for engine in &engines {
        engine.run(prompt.clone()).await?;
    }

    let mut server = Server::start_with(anywhere(), anywhere(), &flags).await?;
    let mut client = client::connect(server.addresses.grpc).await?;
    for id in ["ages", "stays"] {
        let blocks = held_once_exact(&mut client, id).await?;
        ensure!(blocks == 10, "{id} holds {blocks}");
    }
    checkpoint(&mut client).await?;
    server.kill().await;

    let mut server = Server::start_with(anywhere(), anywhere(), &flags).await?;
    let mut client = client::connect(server.addresses.grpc).await?;
    for (id, expected) in [("ages", 0), ("stays", 10)] {
        let blocks = held_once_exact(&mut client, id).await?;
        ensure!(blocks == expected, "{id} holds {blocks}");
    }
    let (_, text) = metrics::get(server.addresses.http, "/metrics").await?;
    ensure!(text.contains("kvasir_expired_blocks_total{reason=\"restart\"} 10\n"), "{text}");
    server.stop().await;
    for engine in engines {
        engine.stop().await;
    }
    Ok(())
}

/// Blocks of the worker's dump once its only source is exact.
async fn held_once_exact(client: &mut Indexer, worker_id: &str) -> Result<usize> {
    let exact = pb::WorkerState::Exact as i32;
    let is_exact = |source: &pb::SourceInfo| source.state == exact && source.connected;
    client::wait_for_sources(client, (MODEL, worker_id), "exact", PATIENCE, is_exact).await?;
    Ok(client::dump_device_copies(client, MODEL, worker_id).await?.len())
}
