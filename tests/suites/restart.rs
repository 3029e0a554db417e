//! What a server that keeps checkpoints knows after a restart, and says when it cannot keep them.

use anyhow::{Context, Result, ensure};
use kvasir_proto::pb;
use kvasir_proto::types::{
    BlockName, Incarnation, KvEvent, LocalHash, PartitionKey, StoredBlock, Tier, WorkerId,
};
use kvasir_tests::client::{self, Indexer};
use kvasir_tests::demo::metrics;
use kvasir_tests::server::Server;
use kvbm_agent::uplink::{SourceIdentity, Uplink};
use std::net::SocketAddr;
use std::path::Path;
use tempfile::TempDir;
use tonic::Code;

const MODEL: &str = "m";
const BLOCK_SIZE: u32 = 16;
const BLOCKS: u64 = 200;

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
    let (status, text) = metrics::get(server.addresses.http, "/readyz").await?;
    ensure!(status == 200, "{text}");
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
