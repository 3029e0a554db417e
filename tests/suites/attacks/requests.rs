//! Requests that are never sent to their end.

use crate::harness::{PATIENCE, RELEASE_TIMEOUT, Siege, wait_for};
use crate::peer::{Call, Peer, head, status};
use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use kvasir_proto::limits::GRPC_MESSAGE_BYTES_MAX;
use kvasir_proto::pb;
use kvasir_proto::pb::publish_events_request::Message;
use kvasir_sim::client;
use router_client::{ClientConfig, IndexerClient, Prompt};
use std::time::Duration;
use tokio::time::{Instant, timeout};
use tonic::Code;

const FIND: &str = "/kvasir.v1.Indexer/FindMatches";
const QUERIES: &str = "/kvasir.v1.Indexer/FindMatchesStream";

/// Begins as many calls as the server lets be under way on a connection.
async fn begin_calls(peer: &mut Peer, path: &str) -> Result<Vec<Call>> {
    let mut calls = vec![peer.begin(path).await?];
    // The server has not said at first.
    wait_for(PATIENCE, || Ok(peer.calls_max() > 1)).await?;
    let most = peer.calls_max();
    ensure!((100..1_000).contains(&most), "{most} calls on one connection");
    while calls.len() < most {
        calls.push(peer.begin(path).await?);
    }
    Ok(calls)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_that_are_half_sent_are_bounded_and_time_out() -> Result<()> {
    let siege = Siege::begin(&[]).await?;
    let mut early = Peer::connect(siege.grpc(), 1 << 20).await?;
    let mut slow = early.begin(QUERIES).await?;
    slow.body.send_data(head(100).freeze(), false)?;
    let half = Bytes::from(vec![0; GRPC_MESSAGE_BYTES_MAX - 1_000]);
    let mut peers = Vec::new();
    let mut calls = Vec::new();
    for _ in 0..10 {
        let mut peer = Peer::connect(siege.grpc(), 1 << 20).await?;
        for _ in 0..16 {
            let mut call = peer.begin(QUERIES).await?;
            call.body.send_data(head(GRPC_MESSAGE_BYTES_MAX - 1).freeze(), false)?;
            call.body.send_data(half.clone(), false)?;
            calls.push(call);
        }
        peers.push(peer);
    }
    let slow = timeout(RELEASE_TIMEOUT, status(slow.answer)).await.context("no deadline")??;
    ensure!(slow == Code::DeadlineExceeded, "{slow:?}");
    // For their bytes, or on a slow machine for their time.
    siege.until(("grpc_limited_total", "message_"), |ended| ended > 100.0).await?;
    drop((peers, calls, early));
    siege.released(256 << 20).await?;
    siege.end().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_without_a_request_leave_room_and_time_out() -> Result<()> {
    let siege = Siege::begin(&[]).await?;
    let mut peer = Peer::connect(siege.grpc(), 1 << 20).await?;
    let began = Instant::now();
    let calls = begin_calls(&mut peer, FIND).await?;
    for call in calls {
        let status = timeout(PATIENCE, status(call.answer)).await??;
        ensure!(status == Code::DeadlineExceeded, "{status:?}");
    }
    ensure!(began.elapsed() < Duration::from_secs(25), "{:?}", began.elapsed());
    siege.end().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn idle_streams_leave_room_for_others_and_most_for_publishers() -> Result<()> {
    let siege = Siege::begin(&[]).await?;
    let mut peers = Vec::new();
    let mut calls = Vec::new();
    // As many connections as a server of today's limits lets take all streams for queries, and some more.
    for _ in 0..30 {
        let mut peer = Peer::connect(siege.grpc(), 1 << 20).await?;
        calls.extend(begin_calls(&mut peer, QUERIES).await?);
        peers.push(peer);
    }
    // A stream that is being refused counts for a moment.
    let settled = |streams| (600.0..=704.0).contains(&streams);
    siege.until(("grpc_asking_streams", ""), settled).await?;
    // Not in a stream for queries: what is kept for dumps and publishers is there.
    let mut indexer = client::connect(siege.grpc()).await?;
    let request = pb::DumpWorkerRequest {
        model: crate::harness::MODEL.to_owned(),
        worker_id: crate::harness::WORKER.to_owned(),
        ..Default::default()
    };
    let mut dump = indexer.dump_worker(request).await?.into_inner();
    while dump.message().await?.is_some() {}
    publish(siege.grpc()).await?;
    // A router that comes now asks by single calls.
    let url = format!("http://{}", siege.grpc());
    let client = IndexerClient::connect(&url, ClientConfig::default())?;
    client.find(&Prompt::new(crate::harness::MODEL, 4, &[0; 4])).await?;
    // The attackers stay, but what is idle makes room: the limits say 5 s, up to twice that.
    let began = Instant::now();
    while indexer.find_matches_stream(futures::stream::empty()).await.is_err() {
        ensure!(began.elapsed() < Duration::from_secs(30), "no room after {:?}", began.elapsed());
        tokio::time::sleep(crate::harness::POLL_INTERVAL).await;
    }
    drop((peers, calls));
    siege.end().await
}

/// Opens a stream of a publisher.
async fn publish(address: std::net::SocketAddr) -> Result<()> {
    let mut indexer = client::connect(address).await?;
    let register = pb::RegisterWorkerRequest {
        worker_id: "late".to_owned(),
        model: "late".to_owned(),
        block_size: 4,
        ..Default::default()
    };
    indexer.register_worker(register).await?;
    let hello = pb::PublishHello {
        model: "late".to_owned(),
        worker_id: "late".to_owned(),
        source: "s".to_owned(),
        block_size: 4,
        incarnation: vec![1; 16].into(),
        ..Default::default()
    };
    let mut peer = Peer::connect(address, 1 << 20).await?;
    let mut call = peer.begin("/kvasir.v1.EventIngest/PublishEvents").await?;
    let hello = pb::PublishEventsRequest { message: Some(Message::Hello(hello)) };
    call.body.send_data(crate::peer::framed(&hello), false)?;
    let mut answers = timeout(PATIENCE, call.answer).await??.into_body();
    ensure!(crate::peer::messages(&mut answers, 1).await? == 1, "the hello is not accepted");
    Ok(())
}
