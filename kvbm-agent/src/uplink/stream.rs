use super::UplinkError;
use bytes::Bytes;
use kvasir_proto::pb::event_ingest_client::EventIngestClient;
use kvasir_proto::pb::publish_events_request::Message as Sent;
use kvasir_proto::pb::publish_events_response::Message as Answered;
use kvasir_proto::pb::published_event::Event;
use kvasir_proto::pb::{
    BlocksCleared, BlocksRemoved, BlocksStored, PublishBatch, PublishEventsRequest,
    PublishEventsResponse, PublishHello, PublishedEvent,
};
use kvasir_proto::types::{DpRank, Incarnation, KvEvent, PartitionKey, Tier, WorkerId};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;
use tonic::transport::Endpoint;

/// Batches on their way that have not been acknowledged, at the most.
const IN_FLIGHT_MAX: usize = 64;

/// Which source speaks.
#[derive(Debug, Clone)]
pub struct SourceIdentity {
    /// Partition of the worker.
    pub partition: PartitionKey,
    /// A registered worker.
    pub worker: WorkerId,
    /// Name of the source, unique within the worker.
    pub source: String,
    /// Tokens per block.
    pub block_size: u32,
    /// Life of the cache: a new one whenever the cache starts empty.
    pub incarnation: Incarnation,
}

/// A batch that is in the index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Acknowledged {
    /// Its number.
    pub sequence: u64,
    /// Whether the index had it before.
    pub duplicate: bool,
}

/// An open stream. Batches are sent one after another and acknowledged in the same order.
#[derive(Debug)]
pub struct Uplink {
    requests: mpsc::Sender<PublishEventsRequest>,
    answers: Streaming<PublishEventsResponse>,
    next_sequence: u64,
}

impl Uplink {
    /// Opens the stream of a source to the indexer at `endpoint` (`http://host:port`). Numbering
    /// goes on where the index stands.
    ///
    /// # Errors
    /// If the indexer cannot be reached or refuses the source.
    pub async fn open(endpoint: &str, source: SourceIdentity) -> Result<Self, UplinkError> {
        let channel = Endpoint::from_shared(endpoint.to_owned())
            .map_err(UplinkError::Endpoint)?
            .tcp_nodelay(true)
            .connect()
            .await
            .map_err(UplinkError::Endpoint)?;
        let (requests, outgoing) = mpsc::channel(IN_FLIGHT_MAX);
        let hello = PublishHello {
            model: source.partition.model().to_owned(),
            tenant: source.partition.tenant().to_owned(),
            worker_id: source.worker.as_str().to_owned(),
            source: source.source,
            block_size: source.block_size,
            incarnation: Bytes::copy_from_slice(&source.incarnation.0.to_be_bytes()),
            copy_mode: 0,
        };
        let hello = PublishEventsRequest { message: Some(Sent::Hello(hello)) };
        requests.send(hello).await.map_err(|_closed| UplinkError::Closed)?;
        let answers = EventIngestClient::new(channel)
            .publish_events(ReceiverStream::new(outgoing))
            .await
            .map_err(|status| UplinkError::Status(Box::new(status)))?
            .into_inner();
        let mut uplink = Self { requests, answers, next_sequence: 0 };
        match uplink.answer().await? {
            Answered::Accepted(accepted) => {
                let applied = accepted.applied.map(|cursor| cursor.sequence + 1);
                uplink.next_sequence = applied.unwrap_or(0);
                Ok(uplink)
            }
            Answered::Refusal(refusal) => Err(refusal.into()),
            Answered::Ack(_) => Err(UplinkError::Malformed("an ack before any batch")),
        }
    }

    /// Number of the next batch.
    #[must_use]
    pub const fn next_sequence(&self) -> u64 {
        self.next_sequence
    }

    /// Sends one batch and waits until the index has it.
    ///
    /// # Errors
    /// If the stream ended or the batch was refused.
    pub async fn publish(
        &mut self,
        rank: DpRank,
        events: &[KvEvent],
    ) -> Result<Acknowledged, UplinkError> {
        let sequence = self.next_sequence;
        let events = events.iter().map(published).collect();
        let batch = PublishBatch { sequence, dp_rank: rank, events };
        let request = PublishEventsRequest { message: Some(Sent::Batch(batch)) };
        self.requests.send(request).await.map_err(|_closed| UplinkError::Closed)?;
        match self.answer().await? {
            Answered::Ack(ack) => {
                self.next_sequence = ack.sequence + 1;
                Ok(Acknowledged { sequence: ack.sequence, duplicate: ack.duplicate })
            }
            Answered::Refusal(refusal) => Err(refusal.into()),
            Answered::Accepted(_) => Err(UplinkError::Malformed("accepted twice")),
        }
    }

    async fn answer(&mut self) -> Result<Answered, UplinkError> {
        let answer = self.answers.message().await;
        let answer = answer.map_err(|status| UplinkError::Status(Box::new(status)))?;
        answer.ok_or(UplinkError::Closed)?.message.ok_or(UplinkError::Malformed("empty"))
    }
}

fn published(event: &KvEvent) -> PublishedEvent {
    let tier = |tier: Tier| match tier {
        Tier::Device => kvasir_proto::pb::Tier::Device as i32,
        Tier::Host => kvasir_proto::pb::Tier::Host as i32,
        Tier::Disk => kvasir_proto::pb::Tier::Disk as i32,
    };
    let event = match event {
        KvEvent::Stored { parent, tier: at, blocks } => Event::Stored(BlocksStored {
            parent_name: parent.map(|name| name.0),
            names: blocks.iter().map(|block| block.name.0).collect(),
            local_hashes: blocks.iter().map(|block| block.local.0).collect(),
            tier: tier(*at),
            ..BlocksStored::default()
        }),
        KvEvent::StoredNames { tier: at, names } => Event::Stored(BlocksStored {
            names: names.iter().map(|name| name.0).collect(),
            tier: tier(*at),
            ..BlocksStored::default()
        }),
        KvEvent::Removed { tier: at, names } => Event::Removed(BlocksRemoved {
            names: names.iter().map(|name| name.0).collect(),
            tier: tier(*at),
        }),
        KvEvent::Cleared => Event::Cleared(BlocksCleared {}),
    };
    PublishedEvent { event: Some(event) }
}
