//! A source in a test's own hands: it says what the test wants, when it wants, and answers nobody.

use crate::agents::{Broker, SOURCE, registration};
use crate::engine::Engine;
use async_nats::{Client, Subscriber};
use kvasir_proto::broker::{LocalCall, events_subject, heartbeats_subject, local_subject};
use kvasir_proto::convert::{BrokerMessage, Heartbeat, Registration, SourceMessage, publish_batch};
use kvasir_proto::pb;
use kvasir_proto::types::{CopyMode, Incarnation, KvEvent, WorkerId};
use prost::Message as _;
use std::collections::BTreeMap;

pub struct Scripted {
    pub registration: Registration,
    client: Client,
    batches: Vec<Vec<KvEvent>>,
    truth: BTreeMap<u64, u32>,
}

impl Scripted {
    /// A source that has so many batches of an engine to publish; later ones are empty.
    pub async fn new(broker: &Broker, worker: &str, batches: usize) -> Self {
        let worker = WorkerId::new(worker).expect("a name");
        let registration = Registration { worker, copy_mode: CopyMode::Counted, ..registration() };
        let mut engine = Engine::new(77);
        let batches = (0..batches).map(|_| engine.batch()).collect();
        Self { registration, client: broker.client().await, batches, truth: engine.truth() }
    }

    pub fn worker(&self) -> &str {
        self.registration.worker.as_str()
    }

    /// What the engine holds after its last batch.
    pub const fn truth(&self) -> &BTreeMap<u64, u32> {
        &self.truth
    }

    /// Publishes these batches of a life, in this order.
    pub async fn publish(&self, life: Incarnation, sequences: impl IntoIterator<Item = u64>) {
        for sequence in sequences {
            let events = self.batches.get(sequence as usize).map_or(&[][..], Vec::as_slice);
            self.say(life, SourceMessage::Batch(publish_batch(sequence, 0, events))).await;
        }
        self.client.flush().await.expect("the broker has it");
    }

    pub async fn heartbeat(&self, life: Incarnation, head_sequence: Option<u64>) {
        self.say(life, SourceMessage::Heartbeat(Heartbeat::at(head_sequence))).await;
        self.client.flush().await.expect("the broker has it");
    }

    async fn say(&self, incarnation: Incarnation, message: SourceMessage) {
        let address = self.registration.address();
        let subject = match &message {
            SourceMessage::Batch(batch) => events_subject(&address, batch.dp_rank),
            SourceMessage::Heartbeat(_) | SourceMessage::Goodbye => heartbeats_subject(&address),
        };
        let registration = self.registration.clone();
        let source = SOURCE.to_owned();
        let message =
            BrokerMessage { registration, source, incarnation, first_sequence: 0, message };
        let payload = pb::BrokerMessage::from(message).encode_to_vec();
        self.client.publish(subject, payload.into()).await.expect("it is sent");
    }

    /// From now on questions to its agent are heard, and not answered.
    pub async fn mute(&self, broker: &Broker) -> Vec<Subscriber> {
        let mut heard = Vec::new();
        for call in [LocalCall::Events, LocalCall::Dump, LocalCall::Status] {
            heard.push(broker.listen(&local_subject(&self.registration.address(), call)).await);
        }
        heard
    }
}
