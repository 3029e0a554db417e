//! Volumes as pools of the index: what is in one counts for every agent that reads it, and outlives whoever put it there.

use crate::engine::{Engine, over_socket, prompt};
use crate::place::{BLOCK_BYTES, BLOCK_SIZE, HOST_BLOCKS, LOOK, MODEL, PATIENCE};
use anyhow::{Context, Result};
use kvasir_proto::hash::bucket;
use kvasir_proto::pb;
use kvasir_proto::types::WorkerId;
use kvasir_sim::client::{self, found};
use kvasir_sim::server::{Addresses, Server};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

const NAME: &str = "shared";

fn anywhere() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 0))
}

/// An agent with a block manager and a volume, but without a disk. It searches the volume once, at its start.
async fn agent(folder: &Path, worker: &str, volume: &Path, to: &[&str]) -> Result<Server> {
    agent_over(&format!("file://{}", volume.display()), folder, worker, to).await
}

async fn agent_over(url: &str, folder: &Path, worker: &str, to: &[&str]) -> Result<Server> {
    let host = format!("bytes={}", HOST_BLOCKS * BLOCK_BYTES);
    let block_size = BLOCK_SIZE.to_string();
    let geometry = format!("bytes={BLOCK_BYTES},dtype=float16");
    let volume = format!("url={url},bytes=1MiB,search-interval=0s,name={NAME}");
    let socket = folder.join(worker).display().to_string();
    let flags = [
        ["--worker-id", worker],
        ["--model", MODEL],
        ["--block-size", &block_size],
        ["--lease", "6s"],
        ["--blocks-host", &host],
        ["--blocks-geometry", &geometry],
        ["--blocks-socket", &socket],
        ["--blocks-volume", &volume],
    ];
    let flags = [flags.as_flattened(), to].concat();
    Server::agent_at(Addresses { grpc: anywhere(), http: anywhere() }, &flags).await
}

async fn find(index: &Server, locals: &[u64], shared: bool) -> Result<pb::FindMatchesResponse> {
    Ok(client::connect(index.addresses.grpc)
        .await?
        .find_matches(asked(locals, shared))
        .await?
        .into_inner())
}

fn asked(locals: &[u64], shared: bool) -> pb::FindMatchesRequest {
    let model = MODEL.to_owned();
    let local_hashes = locals.to_vec();
    pb::FindMatchesRequest { model, local_hashes, shared, ..Default::default() }
}

/// Waits until a query with `shared` finds these.
async fn until_found(index: &Server, locals: &[u64], expected: &[(&str, u32, u32)]) -> Result<()> {
    client::until_found(index.addresses.grpc, &asked(locals, true), expected, PATIENCE).await
}

/// The one pool.
async fn pool(index: &Server) -> Result<pb::WorkerInfo> {
    let mut indexer = client::connect(index.addresses.grpc).await?;
    let listed = indexer.list_workers(pb::ListWorkersRequest::default()).await?.into_inner();
    let is_pool = |at: &pb::WorkerInfo| {
        at.registration.as_ref().is_some_and(|at| at.kind() == pb::HolderKind::Pool)
    };
    let mut pools = listed.workers.into_iter().filter(is_pool);
    let pool = pools.next().context("a pool")?;
    anyhow::ensure!(pools.next().is_none(), "one pool");
    Ok(pool)
}

async fn saved(folder: &Path, worker: &str, locals: &[u64]) -> Result<()> {
    let mut engine = Engine::open(over_socket(&folder.join(worker)).await?).await?;
    engine.save(locals).await?;
    engine.until_copied().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_killed_agent_put_into_a_volume_counts_for_its_readers() -> Result<()> {
    let folder = TempDir::new()?;
    let volume = TempDir::new()?;
    let checkpoints = TempDir::new()?;
    let checkpoint_dir = checkpoints.path().display().to_string();
    let keeping = ["--checkpoint-dir", &checkpoint_dir];
    let mut index = Server::start_with(anywhere(), anywhere(), &keeping).await?;
    let to = format!("http://{}", index.addresses.grpc);
    let to = ["--indexers", &to];
    let mut first = agent(folder.path(), "a", volume.path(), &to).await?;
    let mut reader = agent(folder.path(), "b", volume.path(), &to).await?;
    let locals = prompt(1, 8);
    saved(folder.path(), "a", &locals).await?;
    until_found(&index, &locals, &[("a", 8, 0), ("b", 8, 8)]).await?;
    let without = find(&index, &locals, false).await?;
    assert_eq!((found(&without), without.pools.len()), (vec![("a", 8, 0)], 0));
    let pool_id = pool(&index).await?.worker_id;
    assert!(pool_id.starts_with("volume:shared#"), "{pool_id}");

    first.kill().await;
    until_found(&index, &locals, &[("b", 8, 8)]).await?;
    let answer = find(&index, &locals, true).await?;
    let [state] = &answer.pools[..] else { panic!("{answer:?}") };
    assert_eq!((&state.pool_id, state.held_blocks), (&pool_id, 8));
    assert!(!state.connected, "the agent that put the blocks there is gone: {state:?}");
    let listed = pool(&index).await?;
    let mut sources: Vec<_> = listed.sources.iter().map(|at| at.source.as_str()).collect();
    sources.sort_unstable();
    assert_eq!((sources, listed.ranks[0].placed_blocks), (vec!["a", "b"], 8));

    // The worker's lease is over, and the pool stays.
    timeout(PATIENCE, until_counted(&index, (1, 1, 8))).await.context("never counted")??;
    let mut indexer = client::connect(index.addresses.grpc).await?;
    let placed = pb::RecordPlacementRequest {
        model: MODEL.to_owned(),
        worker_id: pool_id.clone(),
        local_hashes: locals.clone(),
        ..Default::default()
    };
    let refused = indexer.record_placement(placed).await.expect_err("it serves no requests");
    assert_eq!(refused.code(), tonic::Code::FailedPrecondition, "{refused}");
    indexer.create_checkpoint(pb::CreateCheckpointRequest { compact: false }).await?;

    let Addresses { grpc, http } = index.addresses;
    index.kill().await;
    index = Server::start_with(grpc, http, &keeping).await?;
    until_found(&index, &locals, &[("b", 8, 8)]).await?;
    // One that begins finds the blocks in the volume, and their bytes are right.
    let mut third = agent(folder.path(), "c", volume.path(), &to).await?;
    until_found(&index, &locals, &[("b", 8, 8), ("c", 8, 8)]).await?;
    let mut engine = Engine::open(over_socket(&folder.path().join("c")).await?).await?;
    engine.until("found", |stats| volume_blocks(stats) == locals.len()).await?;
    assert_eq!(engine.load(&locals).await?, locals.len());
    until_found(&index, &locals, &[("b", 8, 8), ("c", 8, 0)]).await?;
    let second = prompt(2, 8);
    saved(folder.path(), "c", &second).await?;
    until_found(&index, &second, &[("b", 8, 8), ("c", 8, 0)]).await?;
    third.stop().await;

    // The reader searched the volume before the blocks were there. It loads what the index credits it with nevertheless.
    let mut engine = Engine::open(over_socket(&folder.path().join("b")).await?).await?;
    assert_eq!(engine.load(&second).await?, second.len());
    until_found(&index, &second, &[("b", 8, 0)]).await?;
    assert_eq!(engine.load(&prompt(3, 8)).await?, 0, "the volume does not have them");

    // The operator removes the pool. The index then knows what the remaining agents know.
    let remove = pb::RemoveWorkerRequest {
        worker_id: pool_id,
        model: MODEL.to_owned(),
        ..Default::default()
    };
    let mut indexer = client::connect(index.addresses.grpc).await?;
    assert_eq!(indexer.remove_worker(remove).await?.into_inner().removed_blocks, 16);
    until_found(&index, &locals, &[]).await?;
    reader.stop().await;
    index.stop().await;
    Ok(())
}

/// Waits until the index counts so many workers, pools, and blocks of pools.
async fn until_counted(index: &Server, expected: (u64, u64, u64)) -> Result<()> {
    let mut indexer = client::connect(index.addresses.grpc).await?;
    loop {
        let stats = indexer.get_stats(pb::GetStatsRequest {}).await?.into_inner();
        let [partition] = &stats.partitions[..] else { anyhow::bail!("{stats:?}") };
        if (partition.workers, partition.pools, partition.pool_pairs) == expected {
            return Ok(());
        }
        sleep(LOOK).await;
    }
}

fn volume_blocks(stats: &pb::GetBlockStatsResponse) -> usize {
    let volume = stats.pools.iter().find(|pool| pool.tier() == pb::BlockTier::Volume);
    volume.map_or(0, |pool| pool.inactive as usize)
}

/// A store that accepts connections and never answers delays one call, and not every call.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_volume_that_hangs_is_not_asked_again_at_once() -> Result<()> {
    let folder = TempDir::new()?;
    let store = TcpListener::bind(anywhere()).await?;
    let endpoint = format!("aws_endpoint=http://{}", store.local_addr()?);
    let asked = Arc::new(AtomicUsize::new(0));
    let mut accepting = JoinSet::new();
    accepting.spawn({
        let asked = Arc::clone(&asked);
        async move {
            let mut connections = Vec::new();
            while let Ok((connection, _)) = store.accept().await {
                connections.push(connection);
                asked.fetch_add(1, Ordering::SeqCst);
            }
        }
    });
    let options =
        [&endpoint, "aws_allow_http=true", "aws_access_key_id=a", "aws_secret_access_key=b"];
    let mut index = Server::start_with(anywhere(), anywhere(), &[]).await?;
    let to = format!("http://{}", index.addresses.grpc);
    let mut flags = vec!["--indexers", &to, "--blocks-volume-option", "aws_region=r"];
    flags.extend(options.into_iter().flat_map(|option| ["--blocks-volume-option", option]));
    let mut agent = agent_over("s3://bucket/blocks", folder.path(), "a", &flags).await?;
    let mut engine = Engine::open(over_socket(&folder.path().join("a")).await?).await?;
    // The search at the start waits for the store all the time.
    let count = || asked.load(Ordering::SeqCst);
    let searching = async {
        while count() == 0 {
            sleep(LOOK).await;
        }
    };
    timeout(PATIENCE, searching).await.context("the volume is not searched")?;
    assert_eq!(engine.load(&prompt(1, 8)).await?, 0);
    assert_eq!(count(), 2, "the volume is asked for the first block");
    for number in 2..8 {
        assert_eq!(engine.load(&prompt(number, 8)).await?, 0);
    }
    assert_eq!(count(), 2, "it is not asked again");
    agent.stop().await;
    index.stop().await;
    accepting.shutdown().await;
    Ok(())
}

/// A name of a worker whose bucket is in the first or the second half.
fn worker_of(shard: usize) -> Result<String> {
    let names = (0..).map(|number| format!("w{number}"));
    for name in names {
        if usize::from(bucket(&WorkerId::new(&name)?)) / 128 == shard {
            return Ok(name);
        }
    }
    anyhow::bail!("no name")
}

/// The pool is in every shard, whoever owns its bucket: a worker of the other one reads it, too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_volume_counts_for_workers_of_all_shards() -> Result<()> {
    let folder = TempDir::new()?;
    let volume = TempDir::new()?;
    let mut shards = Vec::new();
    for shard in ["0/2", "1/2"] {
        let two = ["--shard", shard, "--index-shards", "3"];
        shards.push(Server::start_with(anywhere(), anywhere(), &two).await?);
    }
    let url = |at: usize| format!("http://{}", shards[at].addresses.grpc);
    let writer = worker_of(0)?;
    let reader = worker_of(1)?;
    let first = url(0);
    let second = url(1);
    let to = ["--indexers", &first, "--pool-indexers", &second];
    let mut writing = agent(folder.path(), &writer, volume.path(), &to).await?;
    let mut reading =
        agent(folder.path(), &reader, volume.path(), &["--indexers", &second]).await?;
    let locals = prompt(1, 8);
    saved(folder.path(), &writer, &locals).await?;
    until_found(&shards[0], &locals, &[(&writer, 8, 0)]).await?;
    until_found(&shards[1], &locals, &[(&reader, 8, 8)]).await?;
    writing.stop().await;
    reading.stop().await;
    for mut shard in shards {
        shard.stop().await;
    }
    Ok(())
}
