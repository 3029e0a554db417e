use super::{
    metrics::{BrokerMetrics, Outcome},
    subjects::Buckets,
};
use crate::ingest::{Ingest, IngestError, PendingAnswer, Session};
use bytes::Bytes;
use kvasir_proto::{
    broker::{events_subject, heartbeats_subject},
    convert::{BrokerMessage, BytesError, PublishedBatch, SourceMessage, WorkerAddress},
    types::Incarnation,
};
use std::{collections::BTreeMap, mem, sync::Arc, time::Duration};

/// Makes batches of sessions from messages. One message at a time, in the order in which they came.
#[derive(Debug)]
pub(super) struct Inlet {
    ingest: Arc<Ingest>,
    /// By worker and name of the source: as many as the registry lets in.
    sessions: BTreeMap<(WorkerAddress, String), Heard>,
    /// Whether a log brings the batches, which keeps them in order.
    in_order: bool,
    /// Whether what comes is not the newest.
    behind: bool,
    metrics: BrokerMetrics,
}

/// A source that was heard.
#[derive(Debug)]
struct Heard {
    session: Session,
    incarnation: Incarnation,
    /// Whether it is known to be there: what a log says, somebody may have said who is gone since.
    is_live: bool,
}

/// Why a message is not taken.
#[derive(Debug, thiserror::Error)]
enum Untaken {
    #[error("malformed: {0}")]
    Malformed(#[from] BytesError),
    #[error("malformed: its subject must be {expected}")]
    Subject { expected: String },
    #[error(transparent)]
    Refused(#[from] IngestError),
}

impl Inlet {
    pub(super) fn new(ingest: Arc<Ingest>, in_order: bool, metrics: BrokerMetrics) -> Self {
        Self { ingest, sessions: BTreeMap::new(), in_order, behind: false, metrics }
    }

    /// The buckets whose workers are wanted.
    pub(super) fn buckets(&self) -> Buckets {
        self.ingest.buckets()
    }

    /// Takes a message that is so old; the answer, if it is a batch that somebody takes.
    pub(super) async fn take(
        &mut self,
        subject: &str,
        payload: Bytes,
        age: Duration,
    ) -> Option<PendingAnswer> {
        let outcome = match self.try_take(subject, payload, age).await {
            Ok(answer) => {
                self.metrics.count(Outcome::Taken);
                return answer;
            }
            Err(Untaken::Refused(IngestError::WrongShard(_))) => return None,
            Err(error @ Untaken::Refused(_)) => {
                tracing::info!(%error, subject, "a message is refused");
                Outcome::Refused
            }
            Err(error) => {
                tracing::warn!(%error, subject, "a message is dropped");
                Outcome::Malformed
            }
        };
        self.metrics.count(outcome);
        None
    }

    async fn try_take(
        &mut self,
        subject: &str,
        payload: Bytes,
        age: Duration,
    ) -> Result<Option<PendingAnswer>, Untaken> {
        let message = BrokerMessage::decode(payload)?;
        check_subject(subject, &message)?;
        if self.is_early(&message) {
            return Ok(None);
        }
        if message.message == SourceMessage::Goodbye {
            self.leave(&message).await?;
            return Ok(None);
        }
        let in_order = self.in_order;
        let heard = self.heard(&message, age).await?;
        match message.message {
            SourceMessage::Heartbeat(heartbeat) => {
                heard.session.heartbeat(heartbeat).await;
                Ok(None)
            }
            // It has left by now.
            SourceMessage::Goodbye => Ok(None),
            SourceMessage::Batch(batch) => {
                let batch = PublishedBatch::read(batch, heard.session.block_size());
                let batch = batch.map_err(BytesError::from)?;
                if in_order {
                    return Ok(Some(heard.session.apply(batch).await));
                }
                heard.session.feed(batch).await;
                Ok(None)
            }
        }
    }

    /// Whether a heartbeat tells of a life that the log will tell of in its turn. Heartbeats are not in the log, so they
    /// may be of any life.
    fn is_early(&self, message: &BrokerMessage) -> bool {
        let SourceMessage::Heartbeat(heartbeat) = &message.message else { return false };
        if !self.in_order || self.is_open(message) {
            return false;
        }
        let key = (message.registration.address(), message.source.clone());
        self.behind || (heartbeat.head_sequence.is_some() && self.sessions.contains_key(&key))
    }

    /// A worker goes, in good order: with the life that is heard. While a log is read from further back, its lease
    /// sees to it.
    async fn leave(&self, message: &BrokerMessage) -> Result<(), IngestError> {
        if self.behind || !self.is_open(message) {
            return Ok(());
        }
        let address = message.registration.address();
        tracing::info!(worker = %address, "the worker says goodbye");
        self.ingest.remove(address).await.map(|_blocks| ())
    }

    /// Whether there is a session of a message's source and life.
    fn is_open(&self, message: &BrokerMessage) -> bool {
        let key = (message.registration.address(), message.source.clone());
        self.sessions.get(&key).is_some_and(|heard| {
            heard.incarnation == message.incarnation && !heard.session.fenced().is_cancelled()
        })
    }

    /// The session of a message's source and life, opened if need be.
    async fn heard(&mut self, message: &BrokerMessage, age: Duration) -> Result<&Heard, Untaken> {
        let key = (message.registration.address(), message.source.clone());
        let is_open = self.is_open(message);
        // Heartbeats are few: they bring what has changed of the registration.
        if !is_open || matches!(message.message, SourceMessage::Heartbeat(_)) {
            let in_order = self.in_order && self.behind;
            let _known = self.ingest.introduce(&message.registration, in_order).await?;
        }
        let fenced = |heard: &Heard| heard.session.fenced().is_cancelled();
        if !is_open || self.sessions.get(&key).is_none_or(fenced) {
            let in_order = self.in_order && matches!(message.message, SourceMessage::Batch(_));
            let accepted = self.ingest.open(&message.hello(), in_order).await?;
            if self.behind || self.in_order {
                accepted.session.behind().await;
            }
            let incarnation = message.incarnation;
            let heard = Heard { session: accepted.session, incarnation, is_live: false };
            if let Some(before) = self.sessions.insert(key.clone(), heard) {
                before.session.close().await;
            }
        }
        let is_now = message.registration.lease.is_none_or(|lease| age < lease);
        let heard = self.sessions.get_mut(&key).ok_or(Untaken::Refused(IngestError::Failed))?;
        if is_now && !heard.is_live {
            heard.is_live = true;
            if !self.behind && self.in_order {
                heard.session.caught_up().await;
            }
        }
        Ok(heard)
    }

    /// What comes from now on is not the newest.
    pub(super) async fn behind(&mut self) {
        self.behind = true;
        self.ingest.set_input_paused(true);
        for heard in self.sessions.values_mut() {
            heard.is_live = false;
            heard.session.behind().await;
        }
    }

    /// All there is was read.
    pub(super) async fn caught_up(&mut self) {
        self.behind = false;
        self.ingest.set_input_paused(false);
        for heard in self.sessions.values().filter(|heard| heard.is_live) {
            heard.session.caught_up().await;
        }
    }

    /// Nothing counts as heard before it is heard again.
    pub(super) async fn forget(&mut self) {
        self.behind = false;
        self.ingest.set_input_paused(false);
        for heard in mem::take(&mut self.sessions).into_values() {
            heard.session.close().await;
        }
    }

    /// Lets go of sessions that are over.
    pub(super) async fn sweep(&mut self) {
        let over = |heard: &Heard| heard.session.fenced().is_cancelled();
        let keys = self.sessions.iter().filter(|(_, heard)| over(heard));
        let keys: Vec<_> = keys.map(|(key, _)| key.clone()).collect();
        for key in keys {
            if let Some(heard) = self.sessions.remove(&key) {
                heard.session.close().await;
            }
        }
    }

    /// Whether no source that is there waits for what it lacks.
    pub(super) fn is_settled(&self) -> bool {
        self.sessions.values().all(|heard| !heard.is_live || heard.session.is_settled())
    }

    /// Whether any worker is known.
    pub(super) fn knows_workers(&self) -> bool {
        !self.ingest.is_empty()
    }

    /// Tells when the buckets have changed.
    pub(super) fn ingest(&self) -> &Arc<Ingest> {
        &self.ingest
    }
}

/// Who may publish on a subject is for the broker to say: a message speaks for no other worker.
fn check_subject(subject: &str, message: &BrokerMessage) -> Result<(), Untaken> {
    let address = message.registration.address();
    let expected = match &message.message {
        SourceMessage::Batch(batch) => events_subject(&address, batch.dp_rank),
        SourceMessage::Heartbeat(_) | SourceMessage::Goodbye => heartbeats_subject(&address),
    };
    if subject == expected { Ok(()) } else { Err(Untaken::Subject { expected }) }
}
