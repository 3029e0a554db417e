//! Answers that nobody reads.

use crate::harness::{MODEL, PATIENCE, Siege, wait_for};
use crate::peer::Peer;
use crate::publishers::ranks;
use anyhow::{Result, ensure};
use kvasir_proto::limits::{NAME_BYTES_MAX, WORKER_LORA_NAMES_MAX};
use kvasir_proto::pb;
use kvasir_sim::client;
use std::net::SocketAddr;

const FIND: &str = "/kvasir.v1.Indexer/FindMatches";
const LIST: &str = "/kvasir.v1.Indexer/ListWorkers";
const QUERIES: &str = "/kvasir.v1.Indexer/FindMatchesStream";

/// Registers workers that make an answer of `ListWorkers` nearly 8 MiB large.
async fn register_large(address: SocketAddr) -> Result<()> {
    let mut indexer = client::connect(address).await?;
    let lora_names: Vec<_> = (1..=WORKER_LORA_NAMES_MAX as u64)
        .map(|id| pb::LoraName { id, name: format!("{id:0NAME_BYTES_MAX$}") })
        .collect();
    for worker in 0..26 {
        let request = pb::RegisterWorkerRequest {
            worker_id: format!("large-{worker}"),
            model: "large".to_owned(),
            block_size: 16,
            lora_names: lora_names.clone(),
            ..Default::default()
        };
        indexer.register_worker(request).await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn single_answers_that_are_not_read_are_bounded_and_cost_the_connection() -> Result<()> {
    let siege = Siege::begin(&[]).await?;
    register_large(siege.grpc()).await?;
    let mut peers = Vec::new();
    let mut calls = Vec::new();
    for _ in 0..3 {
        let mut peer = Peer::connect(siege.grpc(), 0).await?;
        for _ in 0..60 {
            calls.push(peer.call(LIST, &pb::ListWorkersRequest::default()).await?);
        }
        peers.push(peer);
    }
    // Few answers are made. The other calls wait for these to be taken, or, if all had arrived before the first answer
    // was made, are refused.
    siege.until(("grpc_large_answer_bytes", ""), |bytes| bytes > f64::from(10 << 20)).await?;
    // Nobody leaves: the server has had enough of them.
    wait_for(PATIENCE, || Ok(peers.iter().all(Peer::is_closed))).await?;
    let cut_off = siege.metric("grpc_connections_cut_off_total", "untaken").await?;
    // On a slow machine the keepalive may have been first.
    ensure!(cut_off > 0.0, "{cut_off} connections cut off");
    // The healthy client has something under way now and then.
    siege.until(("grpc_requests_in_flight", ""), |calls| calls < 2.0).await?;
    siege.until(("grpc_large_answer_bytes", ""), |bytes| bytes == 0.0).await?;
    siege.until(("grpc_small_answer_bytes", ""), |bytes| bytes < 10_000.0).await?;
    siege.end().await
}

/// They hold a few bytes each, and no place that others need.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn small_answers_that_are_not_read_keep_nobody_from_asking() -> Result<()> {
    let siege = Siege::begin(&[]).await?;
    let question = pb::FindMatchesRequest {
        model: MODEL.to_owned(),
        local_hashes: vec![1],
        ..Default::default()
    };
    let mut peers = Vec::new();
    let mut calls = Vec::new();
    for _ in 0..9 {
        let mut peer = Peer::connect(siege.grpc(), 0).await?;
        for _ in 0..120 {
            calls.push(peer.call(FIND, &question).await?);
        }
        peers.push(peer);
    }
    for call in &mut calls {
        // It is answered, and the answer is not read.
        (&mut call.answer).await?;
    }
    siege.until(("grpc_requests_in_flight", ""), |calls| calls < 2.0).await?;
    let mut client = client::connect(siege.grpc()).await?;
    for _ in 0..100 {
        client.find_matches(question.clone()).await?;
    }
    drop((peers, calls));
    siege.until(("grpc_small_answer_bytes", ""), |bytes| bytes < 10_000.0).await?;
    siege.end().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_of_streams_that_are_not_read_are_bounded() -> Result<()> {
    let siege = Siege::begin(&[]).await?;
    // 8 workers with long names and 1,024 ranks each: an answer of 2 MB.
    ranks(siege.grpc(), "wide", 8).await?;
    let question = pb::FindMatchesRequest {
        model: "wide".to_owned(),
        local_hashes: vec![1],
        minimum_overlap_blocks: Some(0),
        ..Default::default()
    };
    let mut peers = Vec::new();
    let mut calls = Vec::new();
    for _ in 0..4 {
        // Something of each answer is taken, so that the next one is made.
        let mut peer = Peer::connect(siege.grpc(), 1_000).await?;
        for _ in 0..62 {
            let mut call = peer.begin(QUERIES).await?;
            for _ in 0..3 {
                // The server may have refused the call already: then its stream is closed.
                drop(call.body.send_data(crate::peer::framed(&question), false));
            }
            calls.push(call);
        }
        peers.push(peer);
    }
    for call in &mut calls {
        // Its answers are under way, or refused.
        (&mut call.answer).await?;
    }
    drop((peers, calls));
    siege.released(256 << 20).await?;
    siege.end().await
}
