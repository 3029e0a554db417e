//! An engine's events and the block manager's, of one rank, joined by `--consolidate`.

use crate::engine::{Engine, over_socket, prompt};
use crate::place::{BLOCK_SIZE, MODEL, PATIENCE, Place, WORKER};
use anyhow::{Context, Result, bail, ensure};
use kvasir_proto::pb;
use kvasir_proto::pb::event_ingest_client::EventIngestClient;
use kvasir_proto::pb::publish_events_request::Message;
use kvasir_proto::pb::publish_events_response::Message as Answer;
use kvasir_proto::pb::published_event::Event;
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;

fn hello(incarnation: u8) -> Message {
    Message::Hello(pb::PublishHello {
        model: MODEL.to_owned(),
        worker_id: WORKER.to_owned(),
        source: "engine".to_owned(),
        block_size: BLOCK_SIZE,
        incarnation: vec![incarnation; 16].into(),
        copy_mode: pb::CopyMode::Set.into(),
        first_sequence: Some(0),
        ..Default::default()
    })
}

/// The engine has its own names for the blocks.
fn names(locals: &[u64]) -> Vec<u64> {
    locals.iter().map(|local| local + (1 << 40)).collect()
}

/// The blocks of a prompt, on the device.
pub fn stored(locals: &[u64]) -> Event {
    let names = names(locals);
    let local_hashes = locals.to_vec();
    Event::Stored(pb::BlocksStored { names, local_hashes, ..Default::default() })
}

pub fn removed(locals: &[u64]) -> Event {
    Event::Removed(pb::BlocksRemoved { names: names(locals), ..Default::default() })
}

/// An engine that publishes on the agent's port.
pub struct Publisher {
    requests: mpsc::Sender<pb::PublishEventsRequest>,
    answers: Streaming<pb::PublishEventsResponse>,
    /// The last batch that the agent had when the stream was opened.
    pub applied: Option<u64>,
}

impl Publisher {
    pub async fn connect(place: &Place, incarnation: u8) -> Result<Self> {
        let (requests, stream) = mpsc::channel(8);
        let message = Some(hello(incarnation));
        requests.send(pb::PublishEventsRequest { message }).await?;
        let address = format!("http://{}", place.agent.addresses.grpc);
        let mut ingest = EventIngestClient::connect(address).await?;
        let answers = ingest.publish_events(ReceiverStream::new(stream)).await?.into_inner();
        let mut publisher = Self { requests, answers, applied: None };
        let Answer::Accepted(accepted) = publisher.answer().await? else { bail!("not accepted") };
        publisher.applied = accepted.applied.map(|cursor| cursor.sequence);
        Ok(publisher)
    }

    async fn answer(&mut self) -> Result<Answer> {
        let answer = timeout(PATIENCE, self.answers.message()).await.context("no answer")??;
        answer.and_then(|answer| answer.message).context("the stream has ended")
    }

    /// Publishes a batch; the agent has it afterwards.
    pub async fn publish(&mut self, sequence: u64, event: Event) -> Result<()> {
        let events = vec![pb::PublishedEvent { event: Some(event) }];
        let batch = Message::Batch(pb::PublishBatch { sequence, events, ..Default::default() });
        self.requests.send(pb::PublishEventsRequest { message: Some(batch) }).await?;
        let Answer::Ack(ack) = self.answer().await? else { bail!("batch {sequence} is refused") };
        ensure!(ack.sequence == sequence && !ack.duplicate, "{ack:?}");
        Ok(())
    }
}

/// The engine has its own names for the blocks. A prompt is found in the device's, the host's and the disk's tier, and stays
/// where a source still has it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_engines_blocks_and_saved_ones_are_one_prompt() -> Result<()> {
    let place = Place::start(&["--consolidate"]).await?;
    let mut engine = Engine::open(over_socket(&place.socket()).await?).await?;
    let locals = prompt(1, 4);
    let mut publisher = Publisher::connect(&place, 3).await?;
    publisher.publish(0, stored(&locals)).await?;
    engine.save(&locals).await?;
    let host = 4;
    let disk = 4;
    place.until_in(&locals, pb::BlocksByTier { device: 4, host, disk }).await?;
    publisher.publish(1, removed(&locals)).await?;
    place.until_in(&locals, pb::BlocksByTier { device: 0, host, disk }).await?;
    place.stop().await;
    Ok(())
}
