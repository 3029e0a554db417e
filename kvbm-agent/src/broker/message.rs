//! Encodes the messages that the agent publishes over NATS: batches, heartbeats and goodbyes.

use super::BrokerConfig;
use bytes::{Bytes, BytesMut};
use kvasir_feed::feed::Feed;
use kvasir_feed::journal::Batch;
use kvasir_proto::broker::{Namespace, events_subject, heartbeats_subject, message_id};
use kvasir_proto::convert::{
    BrokerMessage, ConvertError, Heartbeat, Problem, Registration, SourceMessage, WorkerAddress,
    publish_batch,
};
use kvasir_proto::pb::{self, broker_message};
use kvasir_proto::types::Incarnation;
use prost::Message;

/// Fields common to all messages of a source.
#[derive(Debug)]
pub(super) struct Envelope {
    address: WorkerAddress,
    registration: Registration,
    source: String,
    namespace: Namespace,
}

/// Encoder for the messages of one incarnation.
#[derive(Debug)]
pub(super) struct IncarnationEnvelope {
    address: WorkerAddress,
    source: String,
    namespace: Namespace,
    incarnation: Incarnation,
    /// Encoded fields of every message. Protobuf reads the bytes appended to them as the same message.
    head: Bytes,
}

fn mismatch(field: &'static str, actual: String, expected: String) -> ConvertError {
    ConvertError::new(field, Problem::Mismatch { actual, expected })
}

impl Envelope {
    /// # Errors
    /// If the registration is not for this source, or breaks the contract.
    pub(super) fn new(config: &BrokerConfig, feed: &Feed) -> Result<Self, ConvertError> {
        let hello = feed.hello();
        let mut registration = config.registration.clone();
        registration.copy_mode = hello.copy_mode;
        if registration.address() != hello.address {
            let actual = registration.address();
            let expected = &hello.address;
            return Err(mismatch("worker", format!("is {actual}"), expected.to_string()));
        }
        if registration.block_size != hello.block_size {
            let actual = registration.block_size;
            let expected = hello.block_size;
            return Err(mismatch("block_size", format!("is {actual}"), expected.to_string()));
        }
        let namespace = config.servers.namespace().clone();
        let address = hello.address;
        let source = hello.source;
        let envelope = Self { address, registration, source, namespace };
        // Refuses settings that no index would accept.
        BrokerMessage::try_from(envelope.message(hello.incarnation, 0))?;
        Ok(envelope)
    }

    fn message(&self, incarnation: Incarnation, first_sequence: u64) -> pb::BrokerMessage {
        let registration = self.registration.clone();
        let source = self.source.clone();
        let message = SourceMessage::Heartbeat(Heartbeat::at(None));
        BrokerMessage { registration, source, incarnation, first_sequence, message }.into()
    }

    /// Encodes the fields that all messages of one incarnation share.
    pub(super) fn with_incarnation(
        &self,
        incarnation: Incarnation,
        first_sequence: u64,
    ) -> IncarnationEnvelope {
        let message =
            pb::BrokerMessage { content: None, ..self.message(incarnation, first_sequence) };
        IncarnationEnvelope {
            address: self.address.clone(),
            source: self.source.clone(),
            namespace: self.namespace.clone(),
            incarnation,
            head: message.encode_to_vec().into(),
        }
    }
}

impl IncarnationEnvelope {
    /// Subject, message id and bytes of a batch.
    pub(super) fn batch(&self, batch: &Batch) -> (String, String, Bytes) {
        let subject = self.namespace.subject(events_subject(&self.address, batch.rank()));
        let id = message_id(&self.address, &self.source, self.incarnation, batch.sequence());
        let batch = publish_batch(batch.sequence(), batch.rank(), batch.events());
        (subject, id, self.message_of(broker_message::Content::Batch(batch)))
    }

    /// Subject and bytes of a heartbeat.
    pub(super) fn heartbeat(&self, heartbeat: Heartbeat) -> (String, Bytes) {
        let message = self.message_of(broker_message::Content::Heartbeat(heartbeat.into()));
        (self.namespace.subject(heartbeats_subject(&self.address)), message)
    }

    /// Subject and bytes of a goodbye.
    pub(super) fn goodbye(&self) -> (String, Bytes) {
        let message = self.message_of(broker_message::Content::Goodbye(pb::PublishGoodbye {}));
        (self.namespace.subject(heartbeats_subject(&self.address)), message)
    }

    fn message_of(&self, content: broker_message::Content) -> Bytes {
        let message = pb::BrokerMessage { content: Some(content), ..Default::default() };
        let mut bytes = BytesMut::with_capacity(self.head.len() + message.encoded_len());
        bytes.extend_from_slice(&self.head);
        bytes.extend_from_slice(&message.encode_to_vec());
        bytes.freeze()
    }
}
