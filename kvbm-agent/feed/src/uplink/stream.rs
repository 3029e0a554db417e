use super::UplinkError;
use super::window::{UNACKED_BATCHES_MAX, Window};
use kvasir_proto::convert::{Heartbeat, Hello, WorkerAddress, publish_batch};
use kvasir_proto::limits::{GRPC_MESSAGE_BYTES_MAX, SEQUENCE_MAX};
use kvasir_proto::pb::event_ingest_client::EventIngestClient;
use kvasir_proto::pb::publish_events_request::Message as Sent;
use kvasir_proto::pb::publish_events_response::Message as Answered;
use kvasir_proto::pb::{self, PublishEventsRequest, PublishEventsResponse};
use kvasir_proto::types::{CopyMode, DpRank, Incarnation, KvEvent, PartitionKey, WorkerId};
use kvasir_tls::Channel;
use kvasir_tls::Dialer;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TrySendError;
use tokio::time::timeout;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;

/// Queue slots for hellos and heartbeats.
const OTHERS_QUEUED_MAX: usize = 8;
/// Queue slots for hellos, heartbeats and all unacknowledged batches.
const REQUESTS_QUEUED_MAX: usize = OTHERS_QUEUED_MAX + UNACKED_BATCHES_MAX;
/// Maximum time from the connection until the indexer has accepted the hello.
const ACCEPT_TIMEOUT: Duration = Duration::from_secs(30);

/// Identity of a stream's source.
#[derive(Debug, Clone)]
pub struct SourceIdentity {
    /// Partition of the worker.
    pub partition: PartitionKey,
    /// The worker, which must be registered.
    pub worker: WorkerId,
    /// Name of the source, unique within the worker.
    pub source: String,
    /// Tokens per block.
    pub block_size: u32,
    /// Incarnation of the cache: a new one whenever the cache starts empty.
    pub incarnation: Incarnation,
}

impl From<SourceIdentity> for Hello {
    fn from(source: SourceIdentity) -> Self {
        let address = WorkerAddress { partition: source.partition, worker: source.worker };
        Self {
            address,
            source: source.source,
            block_size: source.block_size,
            incarnation: source.incarnation,
            copy_mode: CopyMode::Set,
            first_sequence: None,
            head_sequence: None,
            local_indexer: None,
        }
    }
}

/// Acknowledgement of a batch by the index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Acknowledged {
    /// Number of the batch.
    pub sequence: u64,
    /// Whether the index had the batch before.
    pub duplicate: bool,
    /// Block operations that the index rejected, because of a limit or another source. The index reports fewer blocks.
    pub rejected: u64,
}

/// An open stream to an indexer.
#[derive(Debug)]
pub struct Uplink {
    requests: mpsc::Sender<PublishEventsRequest>,
    answers: Streaming<PublishEventsResponse>,
    /// Last batch that the index had when the stream began.
    applied: Option<u64>,
    /// Number of the next batch; `None` once the last number is used.
    next_sequence: Option<u64>,
    window: Window,
}

impl Uplink {
    /// Opens the stream of a source to the indexer at `endpoint` (`http://host:port`). Numbering continues after the
    /// index's last batch. Without TLS, which agents support.
    ///
    /// # Errors
    /// If the indexer cannot be reached or refuses the source.
    pub async fn open(endpoint: &str, source: SourceIdentity) -> Result<Self, UplinkError> {
        Self::open_as((&Dialer::default(), endpoint), source.into()).await
    }

    pub(super) async fn open_as(to: (&Dialer, &str), hello: Hello) -> Result<Self, UplinkError> {
        let channel = connect(to).await?;
        timeout(ACCEPT_TIMEOUT, Self::open_on(channel, hello))
            .await
            .map_err(|_late| UplinkError::Silent(ACCEPT_TIMEOUT))?
    }

    /// Opens the stream over a channel, and waits for the index to accept the hello.
    async fn open_on(channel: Channel, hello: Hello) -> Result<Self, UplinkError> {
        let (requests, outgoing) = mpsc::channel(REQUESTS_QUEUED_MAX);
        let hello = PublishEventsRequest { message: Some(Sent::Hello(hello.into())) };
        requests.send(hello).await.map_err(|_closed| UplinkError::Closed)?;
        let answers = EventIngestClient::new(channel)
            .max_encoding_message_size(GRPC_MESSAGE_BYTES_MAX)
            .publish_events(ReceiverStream::new(outgoing))
            .await
            .map_err(|status| UplinkError::Status(Box::new(status)))?
            .into_inner();
        let applied = None;
        let window = Window::default();
        let mut uplink = Self { requests, answers, applied, next_sequence: Some(0), window };
        match uplink.answer().await? {
            Answered::Accepted(accepted) => {
                if let Some(applied) = accepted.applied {
                    uplink.applied = Some(applied.sequence);
                    uplink.next_sequence = after(applied.sequence);
                }
                Ok(uplink)
            }
            Answered::Refusal(refusal) => Err(refusal.into()),
            Answered::Ack(_) => Err(UplinkError::Malformed("an ack before any batch")),
        }
    }

    /// Number of the next batch; `None` if the incarnation's numbers are used up.
    #[must_use]
    pub const fn next_sequence(&self) -> Option<u64> {
        self.next_sequence
    }

    /// Sends one batch and waits until the index has it. A call that is dropped leaves the stream unusable: then open a
    /// new stream, which reports the index's position.
    ///
    /// # Errors
    /// If the stream ended, the batch was refused, or the numbers are used up.
    pub async fn publish(
        &mut self,
        rank: DpRank,
        events: &[KvEvent],
    ) -> Result<Acknowledged, UplinkError> {
        if !self.window.is_empty() {
            return Err(UplinkError::Abandoned);
        }
        let sequence = self.next_sequence.ok_or(UplinkError::Exhausted)?;
        self.send((sequence, rank, events), 0);
        let answer = self.acknowledged().await;
        self.window = Window::default();
        let acknowledged = answer?;
        self.next_sequence = after(sequence);
        Ok(acknowledged)
    }

    /// Last batch that the index had when the stream began.
    pub(super) const fn applied(&self) -> Option<u64> {
        self.applied
    }

    /// Unacknowledged batches.
    pub(super) const fn window(&self) -> &Window {
        &self.window
    }

    /// Queues a numbered batch without waiting. The window must have room.
    pub(super) fn send(&mut self, batch: (u64, DpRank, &[KvEvent]), bytes: usize) {
        let (sequence, rank, events) = batch;
        self.window.sent(sequence, bytes);
        let batch = publish_batch(sequence, rank, events);
        let request = PublishEventsRequest { message: Some(Sent::Batch(batch)) };
        let sent = self.requests.try_send(request);
        debug_assert!(!matches!(sent, Err(TrySendError::Full(_))), "there is room for batches");
        // If the indexer has ended the stream, its answer has the reason.
        drop(sent);
    }

    /// Queues a heartbeat. Returns false, and queues nothing, if only the slots reserved for batches are free.
    pub(super) fn heartbeat(&self, heartbeat: Heartbeat) -> bool {
        let has_room = self.requests.capacity() > UNACKED_BATCHES_MAX;
        if has_room {
            let heartbeat = Sent::Heartbeat(heartbeat.into());
            let request = PublishEventsRequest { message: Some(heartbeat) };
            // If the stream has ended, the answer has the reason.
            drop(self.requests.try_send(request));
        }
        has_room
    }

    /// Waits for the answer to the oldest unacknowledged batch. Cancel safe: loses nothing when dropped.
    pub(super) async fn acknowledged(&mut self) -> Result<Acknowledged, UplinkError> {
        match self.answer().await? {
            Answered::Ack(ack) => {
                self.window.acknowledged(ack.sequence)?;
                let pb::PublishAck { sequence, duplicate, rejected, .. } = ack;
                Ok(Acknowledged { sequence, duplicate, rejected })
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

pub(super) async fn connect((dialer, endpoint): (&Dialer, &str)) -> Result<Channel, UplinkError> {
    Ok(dialer.connect(endpoint).await?)
}

/// The next number; `None` after the highest.
const fn after(sequence: u64) -> Option<u64> {
    if sequence < SEQUENCE_MAX { Some(sequence + 1) } else { None }
}
