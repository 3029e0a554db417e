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
use std::time::Duration;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;
use tonic::transport::Endpoint;

/// Messages on their way to the connection. Each batch waits for its answer, so there is one.
const REQUESTS_QUEUED_MAX: usize = 1;
/// Longest time until a connection is there.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

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

/// An open stream. Each batch waits for its acknowledgement before the next is sent.
#[derive(Debug)]
pub struct Uplink {
    requests: mpsc::Sender<PublishEventsRequest>,
    answers: Streaming<PublishEventsResponse>,
    /// None once the last number is used.
    next_sequence: Option<u64>,
    /// A batch was sent and its answer not yet read.
    awaiting: bool,
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
            .connect_timeout(CONNECT_TIMEOUT)
            .tcp_nodelay(true)
            .connect()
            .await
            .map_err(UplinkError::Endpoint)?;
        let (requests, outgoing) = mpsc::channel(REQUESTS_QUEUED_MAX);
        let hello = PublishHello {
            model: source.partition.model().to_owned(),
            tenant: source.partition.tenant().to_owned(),
            worker_id: source.worker.as_str().to_owned(),
            source: source.source,
            block_size: source.block_size,
            incarnation: Bytes::copy_from_slice(&source.incarnation.0.to_be_bytes()),
            copy_mode: 0,
            first_sequence: None,
            head_sequence: None,
        };
        let hello = PublishEventsRequest { message: Some(Sent::Hello(hello)) };
        requests.send(hello).await.map_err(|_closed| UplinkError::Closed)?;
        let answers = EventIngestClient::new(channel)
            .publish_events(ReceiverStream::new(outgoing))
            .await
            .map_err(|status| UplinkError::Status(Box::new(status)))?
            .into_inner();
        let mut uplink = Self { requests, answers, next_sequence: Some(0), awaiting: false };
        match uplink.answer().await? {
            Answered::Accepted(accepted) => {
                if let Some(applied) = accepted.applied {
                    uplink.next_sequence = applied.sequence.checked_add(1);
                }
                Ok(uplink)
            }
            Answered::Refusal(refusal) => Err(refusal.into()),
            Answered::Ack(_) => Err(UplinkError::Malformed("an ack before any batch")),
        }
    }

    /// Number of the next batch; none if the numbers of this incarnation are used up.
    #[must_use]
    pub const fn next_sequence(&self) -> Option<u64> {
        self.next_sequence
    }

    /// Sends one batch and waits until the index has it. A call that is dropped half-way leaves the
    /// stream unusable: open a new one, which tells where the index stands.
    ///
    /// # Errors
    /// If the stream ended, the batch was refused, or there is no number left.
    pub async fn publish(
        &mut self,
        rank: DpRank,
        events: &[KvEvent],
    ) -> Result<Acknowledged, UplinkError> {
        if self.awaiting {
            return Err(UplinkError::Abandoned);
        }
        let sequence = self.next_sequence.ok_or(UplinkError::Exhausted)?;
        let events = events.iter().map(published).collect();
        let batch = PublishBatch { sequence, dp_rank: rank, events };
        let request = PublishEventsRequest { message: Some(Sent::Batch(batch)) };
        self.awaiting = true;
        // If the indexer has ended the stream, its answer says why.
        let _ended = self.requests.send(request).await;
        let answer = self.answer().await;
        self.awaiting = false;
        match answer? {
            Answered::Ack(ack) if ack.sequence != sequence => {
                Err(UplinkError::Malformed("an ack of another batch"))
            }
            Answered::Ack(ack) => {
                self.next_sequence = sequence.checked_add(1);
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
