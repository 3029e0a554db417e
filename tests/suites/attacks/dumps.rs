//! Dumps that nobody reads.

use crate::harness::{MODEL, Siege, WORKER};
use crate::peer::{Peer, status};
use anyhow::{Context, Result, ensure};
use futures::TryStreamExt;
use kvasir_proto::pb;
use kvasir_sim::client;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

const DUMP: &str = "/kvasir.v1.Indexer/DumpWorker";
/// Connections of the attacker, and dumps that each has under way or waiting all the time.
const ATTACKERS: usize = 4;
const DUMPS: usize = 4;
/// Dumps of the healthy client, one after the other, and longest time that one takes.
const HEALTHY_DUMPS: usize = 4;
const DUMP_TIMEOUT: Duration = Duration::from_secs(20);

/// A dump of the healthy worker in as many parts as it has blocks.
fn request() -> pb::DumpWorkerRequest {
    pb::DumpWorkerRequest {
        model: MODEL.to_owned(),
        worker_id: WORKER.to_owned(),
        chunk_records: Some(1),
        ..Default::default()
    }
}

/// Begins a dump again and again, of which nothing is read, until it is stopped.
async fn leave_unread(server: SocketAddr) -> Result<()> {
    loop {
        let mut peer = Peer::connect(server, 0).await?;
        let mut calls = Vec::new();
        for _ in 0..DUMPS {
            calls.push(peer.call(DUMP, &request()).await?);
        }
        for call in calls {
            // It is refused, or ended for others; then there is another one.
            let _ended = status(call.answer).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dumps_that_are_not_read_keep_nobody_from_dumping() -> Result<()> {
    let siege = Siege::begin(&[]).await?;
    let mut attackers = JoinSet::new();
    for _ in 0..ATTACKERS {
        attackers.spawn(leave_unread(siege.grpc()));
    }
    siege.until(("grpc_asking_streams", ""), |streams| streams >= 4.0).await?;
    let mut indexer = client::connect(siege.grpc()).await?;
    for number in 0..HEALTHY_DUMPS {
        let begun = Instant::now();
        let dump = async {
            let parts = indexer.dump_worker(request()).await?.into_inner();
            let parts: Vec<_> = parts.try_collect().await?;
            let records = parts.into_iter().map(|part| match part.part {
                Some(pb::dump_worker_response::Part::Chunk(chunk)) => chunk.records.len(),
                Some(
                    pb::dump_worker_response::Part::Meanings(_)
                    | pb::dump_worker_response::Part::End(_),
                )
                | None => 0,
            });
            anyhow::Ok(records.sum::<usize>())
        };
        let records = timeout(DUMP_TIMEOUT, dump).await.context("late")?;
        let records = records.with_context(|| format!("dump {number}"))?;
        ensure!(records == 64, "dump {number}: {records} records");
        println!("dump {number} took {:?}", begun.elapsed());
    }
    ensure!(attackers.try_join_next().is_none(), "an attacker has given up");
    attackers.shutdown().await;
    siege.end().await
}
