//! Ranks and partitions under a byte budget: they hold next to nothing, and cannot be shed.

use crate::harness::{MODEL, Siege, WORKER};
use crate::publishers::ranks;
use anyhow::{Context, Result, ensure};
use kvasir_proto::limits::{NAME_BYTES_MAX, UNANSWERED_BATCHES_MAX};
use kvasir_proto::pb;
use kvasir_sim::client::{self, Indexer};
use tonic::{Code, Status};

/// Byte budgets, as options say it.
const SMALL: (&str, u64) = ("--max-index-bytes=1MiB", 1 << 20);
const LARGER: (&str, u64) = ("--max-index-bytes=4MiB", 4 << 20);
/// Most that one hold of the writer allocates.
const HOLD_BYTES: u64 = 128 << 10;
/// Workers with 1,024 ranks each, of which there is room for about half.
const WORKERS: usize = 8;

/// Bytes of the index, never more than its budget.
async fn index_bytes(indexer: &mut Indexer, limit: u64) -> Result<u64> {
    let bytes = indexer.get_stats(pb::GetStatsRequest {}).await?.into_inner().index_bytes;
    ensure!(bytes <= limit + HOLD_BYTES, "{bytes} bytes of {limit}");
    Ok(bytes)
}

fn is_no_room(refused: &Status) -> bool {
    refused.code() == Code::ResourceExhausted && refused.message().contains("--max-index-bytes")
}

fn worker(model: &str, tenant: &str) -> pb::RegisterWorkerRequest {
    pb::RegisterWorkerRequest {
        worker_id: "w".to_owned(),
        model: model.to_owned(),
        tenant: tenant.to_owned(),
        block_size: 16,
        ..Default::default()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ranks_beyond_the_byte_budget_are_refused_and_their_worker_is_partial() -> Result<()> {
    let siege = Siege::begin(&[LARGER.0]).await?;
    let mut indexer = client::connect(siege.grpc()).await?;
    ranks(siege.grpc(), "many", WORKERS).await?;
    println!("{} bytes", index_bytes(&mut indexer, LARGER.1).await?);
    let refused = siege.metric("block_operations_total", "no_room_for_ranks").await?;
    ensure!(refused > 1_000.0, "{refused} blocks refused");
    // Each lacks some of its ranks, and says so.
    for number in 0..WORKERS {
        let id = format!("{number:0NAME_BYTES_MAX$}");
        let found = client::find_worker(&mut indexer, "many", &id).await?;
        let found = found.context("a worker is gone")?;
        ensure!(found.ranks.len() < UNANSWERED_BATCHES_MAX, "{} ranks", found.ranks.len());
        let states: Vec<_> = found.sources.iter().map(|at| at.state).collect();
        ensure!(states == [i32::from(pb::WorkerState::Partial)], "{states:?}");
    }
    // There is room again once some are removed.
    let refused = indexer.register_worker(worker("late", "")).await.err();
    ensure!(refused.as_ref().is_some_and(is_no_room), "{refused:?}");
    for number in 0..WORKERS {
        let worker_id = format!("{number:0NAME_BYTES_MAX$}");
        let model = "many".to_owned();
        let tenant = String::new();
        indexer.remove_worker(pb::RemoveWorkerRequest { worker_id, model, tenant }).await?;
    }
    indexer.register_worker(worker("late", "")).await.context("there is room again")?;
    let healthy = client::find_worker(&mut indexer, MODEL, WORKER).await?;
    ensure!(healthy.is_some_and(|at| at.ranks[0].placed_blocks == 64), "the healthy worker");
    siege.end().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn partitions_beyond_the_byte_budget_are_refused() -> Result<()> {
    let siege = Siege::begin(&[SMALL.0]).await?;
    let mut indexer = client::connect(siege.grpc()).await?;
    let mut registered = 0;
    let refused = loop {
        let tenant = format!("t-{registered}");
        match indexer.register_worker(worker("m", &tenant)).await {
            Ok(_created) => registered += 1,
            Err(refused) => break refused,
        }
        ensure!(registered < 3_900, "all are taken");
    };
    ensure!(is_no_room(&refused), "{refused}");
    println!("{registered} partitions, {} bytes", index_bytes(&mut indexer, SMALL.1).await?);
    siege.end().await
}
