//! Publishers, which are no attackers: many on one connection.

use crate::harness::{PATIENCE, Siege};
use crate::peer::{Peer, framed, messages};
use anyhow::{Result, ensure};
use kvasir_proto::limits::{NAME_BYTES_MAX, UNANSWERED_BATCHES_MAX};
use kvasir_proto::pb;
use kvasir_proto::pb::publish_events_request::Message;
use kvasir_sim::client;
use std::net::SocketAddr;
use std::ops::Range;
use tokio::time::timeout;

const PUBLISH: &str = "/kvasir.v1.EventIngest/PublishEvents";
const BLOCK_SIZE: u32 = 16;

/// Registers workers with long names, and publishes for each as many small batches as may wait for their answers, all at
/// once, a frame and a new rank each, all over one connection. Every batch must be acknowledged.
pub async fn ranks(address: SocketAddr, model: &str, workers: usize) -> Result<()> {
    ranks_of(address, model, 0..workers).await
}

/// The same for the workers of these numbers.
pub async fn ranks_of(address: SocketAddr, model: &str, workers: Range<usize>) -> Result<()> {
    let mut indexer = client::connect(address).await?;
    let mut peer = Peer::connect(address, 1 << 20).await?;
    let mut calls = Vec::new();
    for worker in workers {
        let worker_id = format!("{worker:0NAME_BYTES_MAX$}");
        let request = pb::RegisterWorkerRequest {
            worker_id: worker_id.clone(),
            model: model.to_owned(),
            block_size: BLOCK_SIZE,
            ..Default::default()
        };
        indexer.register_worker(request).await?;
        let hello = pb::PublishHello {
            model: model.to_owned(),
            worker_id,
            source: "attack".to_owned(),
            block_size: BLOCK_SIZE,
            incarnation: vec![7; 16].into(),
            ..Default::default()
        };
        let mut call = peer.begin(PUBLISH).await?;
        call.body.send_data(request_of(Message::Hello(hello)), false)?;
        calls.push(call);
    }
    for rank in 0..UNANSWERED_BATCHES_MAX as u32 {
        for call in &mut calls {
            call.body.send_data(request_of(Message::Batch(batch(rank))), false)?;
        }
    }
    let expected = 1 + UNANSWERED_BATCHES_MAX;
    for call in calls {
        let mut answers = call.answer.await?.into_body();
        let came = timeout(PATIENCE, messages(&mut answers, expected)).await??;
        ensure!(came == expected, "{came} of {expected} answers");
    }
    Ok(())
}

fn request_of(message: Message) -> bytes::Bytes {
    framed(&pb::PublishEventsRequest { message: Some(message) })
}

/// A batch with one block, on a rank of its own.
fn batch(rank: u32) -> pb::PublishBatch {
    let names = vec![u64::from(rank) + 1];
    let stored = pb::BlocksStored { local_hashes: names.clone(), names, ..Default::default() };
    let event = pb::published_event::Event::Stored(stored);
    pb::PublishBatch {
        sequence: u64::from(rank),
        dp_rank: rank,
        events: vec![pb::PublishedEvent { event: Some(event) }],
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn eight_publishers_on_one_connection_may_pipeline_all_that_may_wait() -> Result<()> {
    let siege = Siege::begin(&[]).await?;
    for round in 0..4 {
        ranks(siege.grpc(), &format!("m{round}"), 8).await?;
    }
    siege.end().await
}
