//! An engine's events and the block manager's, of one rank, joined by `--consolidate`.

use crate::engine::{Engine, over_socket, prompt};
use crate::place::{BLOCK_SIZE, MODEL, Place, WORKER};
use anyhow::Result;
use kvasir_proto::pb;
use kvasir_proto::pb::event_ingest_client::EventIngestClient;
use kvasir_proto::pb::publish_events_request::Message;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;

fn request(message: Message) -> pb::PublishEventsRequest {
    pb::PublishEventsRequest { message: Some(message) }
}

fn hello() -> Message {
    Message::Hello(pb::PublishHello {
        model: MODEL.to_owned(),
        worker_id: WORKER.to_owned(),
        source: "engine".to_owned(),
        block_size: BLOCK_SIZE,
        incarnation: vec![3; 16].into(),
        copy_mode: pb::CopyMode::Set.into(),
        first_sequence: Some(0),
        ..Default::default()
    })
}

fn batch(sequence: u64, event: pb::published_event::Event) -> Message {
    let events = vec![pb::PublishedEvent { event: Some(event) }];
    Message::Batch(pb::PublishBatch { sequence, events, ..Default::default() })
}

/// The engine has its own names for the blocks. A prompt is found in the device's, the host's and the disk's tier, and stays
/// where a source still has it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_engines_blocks_and_saved_ones_are_one_prompt() -> Result<()> {
    let place = Place::start(&["--consolidate"]).await?;
    let mut engine = Engine::open(over_socket(&place.socket()).await?).await?;
    let locals = prompt(1, 4);
    let (batches, stream) = mpsc::channel(8);
    batches.send(request(hello())).await?;
    let names: Vec<u64> = (900..904).collect();
    let stored = pb::BlocksStored {
        names: names.clone(),
        local_hashes: locals.clone(),
        ..Default::default()
    };
    batches.send(request(batch(0, pb::published_event::Event::Stored(stored)))).await?;
    let address = format!("http://{}", place.agent.addresses.grpc);
    let mut ingest = EventIngestClient::connect(address).await?;
    let _acks = ingest.publish_events(ReceiverStream::new(stream)).await?.into_inner();
    engine.save(&locals).await?;
    let (host, disk) = (4, 4);
    place.until_in(&locals, pb::BlocksByTier { device: 4, host, disk }).await?;
    let removed = pb::BlocksRemoved { names, ..Default::default() };
    batches.send(request(batch(1, pb::published_event::Event::Removed(removed)))).await?;
    place.until_in(&locals, pb::BlocksByTier { device: 0, host, disk }).await?;
    place.stop().await;
    Ok(())
}
