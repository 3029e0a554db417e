use super::shared::{check_required_name, check_sequence, read_incarnation};
use super::{
    ConvertError, Heartbeat, Hello, LOCAL_INDEXER_BY_BROKER, Problem, Registration, incarnation,
};
use crate::pb::{self, broker_message};
use crate::types::Incarnation;
use std::time::Duration;

/// Default lease of a worker that publishes over a broker.
const LEASE_BY_BROKER_DEFAULT: Duration = Duration::from_secs(60);

/// A checked `BrokerMessage`.
#[derive(Debug, Clone, PartialEq)]
pub struct BrokerMessage {
    /// The worker. An index registers it if it is not registered yet.
    pub registration: Registration,
    /// Name of the source.
    pub source: String,
    /// Incarnation of the source's cache.
    pub incarnation: Incarnation,
    /// Number of the first batch of this incarnation.
    pub first_sequence: u64,
    /// The batch, heartbeat or goodbye.
    pub message: SourceMessage,
}

/// A message of a source over a broker.
#[derive(Debug, Clone, PartialEq)]
pub enum SourceMessage {
    /// A batch, not decoded yet: decoding needs the block size.
    Batch(pb::PublishBatch),
    /// The source is alive.
    Heartbeat(Heartbeat),
    /// The source is about to end, and its worker ends with it.
    Goodbye,
}

impl BrokerMessage {
    /// The hello that the source would send on a gRPC stream.
    #[must_use]
    pub fn hello(&self) -> Hello {
        let head_sequence = match &self.message {
            SourceMessage::Batch(batch) => Some(batch.sequence),
            SourceMessage::Heartbeat(heartbeat) => heartbeat.head_sequence,
            SourceMessage::Goodbye => None,
        };
        Hello {
            address: self.registration.address(),
            source: self.source.clone(),
            block_size: self.registration.block_size,
            incarnation: self.incarnation,
            copy_mode: self.registration.copy_mode,
            first_sequence: Some(self.first_sequence),
            head_sequence,
            // No gRPC stream: the source publishes over the broker.
            local_indexer: None,
        }
    }
}

impl TryFrom<pb::BrokerMessage> for BrokerMessage {
    type Error = ConvertError;

    fn try_from(message: pb::BrokerMessage) -> Result<Self, ConvertError> {
        let required = |field: &'static str| ConvertError::new(field, Problem::Required);
        let worker = message.worker.ok_or_else(|| required("worker"))?;
        let mut registration =
            Registration::try_from(worker).map_err(|error| error.within("worker"))?;
        // A publisher over a broker cannot be asked to resend. If its agent does not answer either, missing batches
        // count as lost.
        registration.local_indexer.get_or_insert_with(|| LOCAL_INDEXER_BY_BROKER.to_owned());
        if !registration.endpoints.is_empty() {
            let refused = Problem::Unexpected("for a worker that publishes over a broker");
            return Err(ConvertError::new("worker.endpoints", refused));
        }
        // Without a lease, the worker would never be removed.
        registration.lease.get_or_insert(LEASE_BY_BROKER_DEFAULT);
        check_required_name("source", &message.source)?;
        check_sequence("first_sequence", message.first_sequence)?;
        let content =
            match message.content.ok_or_else(|| required("batch, heartbeat or goodbye"))? {
                broker_message::Content::Batch(batch) => {
                    check_sequence("batch.sequence", batch.sequence)?;
                    SourceMessage::Batch(batch)
                }
                broker_message::Content::Heartbeat(heartbeat) => {
                    let heartbeat = Heartbeat::try_from(heartbeat);
                    SourceMessage::Heartbeat(heartbeat.map_err(|error| error.within("heartbeat"))?)
                }
                broker_message::Content::Goodbye(pb::PublishGoodbye {}) => SourceMessage::Goodbye,
            };
        Ok(Self {
            registration,
            source: message.source,
            incarnation: read_incarnation("incarnation", &message.incarnation)?,
            first_sequence: message.first_sequence,
            message: content,
        })
    }
}

impl From<BrokerMessage> for pb::BrokerMessage {
    fn from(message: BrokerMessage) -> Self {
        let content = match message.message {
            SourceMessage::Batch(batch) => broker_message::Content::Batch(batch),
            SourceMessage::Heartbeat(heartbeat) => {
                broker_message::Content::Heartbeat(heartbeat.into())
            }
            SourceMessage::Goodbye => broker_message::Content::Goodbye(pb::PublishGoodbye {}),
        };
        Self {
            worker: Some((&message.registration).into()),
            source: message.source,
            incarnation: incarnation(message.incarnation),
            first_sequence: message.first_sequence,
            content: Some(content),
        }
    }
}
