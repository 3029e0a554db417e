use super::metrics::{BrokerMetrics, Outcome};
use super::subjects::Buckets;
use crate::ingest::{Arrival, Ingest, IngestError, PendingAnswer, SourceSession};
use bytes::Bytes;
use kvasir_proto::broker::{Namespace, events_subject, heartbeats_subject};
use kvasir_proto::convert::{
    BrokerMessage, BytesError, PublishedBatch, SourceMessage, WorkerAddress,
};
use kvasir_proto::types::Incarnation;
use std::collections::BTreeMap;
use std::mem;
use std::sync::Arc;
use std::time::Duration;

/// Turns messages into batches of sessions, one message at a time, in the order of arrival.
#[derive(Debug)]
pub(super) struct Inlet {
    ingest: Arc<Ingest>,
    /// Sessions by worker and name of the source. The registry limits their number.
    sessions: BTreeMap<(WorkerAddress, String), OpenSession>,
    /// Whether the batches come from an ordered log.
    in_order: bool,
    /// Whether the log is being read from an earlier position, or the broker is unreachable.
    behind: bool,
    /// Prefix of all subjects.
    namespace: Arc<Namespace>,
    metrics: BrokerMetrics,
}

/// The open session of a source.
#[derive(Debug)]
struct OpenSession {
    session: SourceSession,
    incarnation: Incarnation,
    /// Whether the source is known to be alive: the sender of an old message may be gone.
    is_live: bool,
}

/// Why a message was dropped or refused.
#[derive(Debug, thiserror::Error)]
enum TakeError {
    #[error("malformed: {0}")]
    Malformed(#[from] BytesError),
    #[error("malformed: the message's subject must be {expected}")]
    Subject { expected: String },
    #[error(transparent)]
    Refused(#[from] IngestError),
}

impl Inlet {
    pub(super) fn new(
        ingest: Arc<Ingest>,
        in_order: bool,
        namespace: Arc<Namespace>,
        metrics: BrokerMetrics,
    ) -> Self {
        Self { ingest, sessions: BTreeMap::new(), in_order, behind: false, namespace, metrics }
    }

    /// Buckets whose workers this server accepts.
    pub(super) fn buckets(&self) -> Buckets {
        self.ingest.buckets()
    }

    /// Handles a message that was published `age` ago. Counts its outcome. Returns the pending reply if the message is
    /// a batch from JetStream.
    pub(super) async fn handle_message(
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
            Err(TakeError::Refused(IngestError::WrongShard(_))) => return None,
            Err(error @ TakeError::Refused(_)) => {
                tracing::info!(%error, subject, "message refused");
                Outcome::Refused
            }
            Err(error) => {
                tracing::warn!(%error, subject, "message dropped");
                Outcome::Malformed
            }
        };
        self.metrics.count(outcome);
        None
    }

    /// Handles a message like [`handle_message`](Self::handle_message), but returns the error. Skips a heartbeat of an
    /// incarnation whose batches the log has yet to deliver.
    async fn try_take(
        &mut self,
        subject: &str,
        payload: Bytes,
        age: Duration,
    ) -> Result<Option<PendingAnswer>, TakeError> {
        let message = BrokerMessage::decode(payload)?;
        check_subject(subject, &self.namespace, &message)?;
        if self.is_early(&message) {
            return Ok(None);
        }
        if message.message == SourceMessage::Goodbye {
            self.remove_worker(&message).await?;
            return Ok(None);
        }
        let in_order = self.in_order;
        let open = self.session(&message, age).await?;
        match message.message {
            SourceMessage::Heartbeat(heartbeat) => {
                open.session.heartbeat(heartbeat).await;
                Ok(None)
            }
            // The worker is already removed here.
            SourceMessage::Goodbye => Ok(None),
            SourceMessage::Batch(batch) => {
                let batch = PublishedBatch::read(batch, open.session.block_size());
                let batch = batch.map_err(BytesError::from)?;
                if in_order {
                    return Ok(Some(open.session.apply(batch).await));
                }
                open.session.feed(batch).await;
                Ok(None)
            }
        }
    }

    /// Whether a heartbeat belongs to an incarnation whose batches the log has not delivered yet. Heartbeats bypass the
    /// log, so they may be of any incarnation.
    fn is_early(&self, message: &BrokerMessage) -> bool {
        let SourceMessage::Heartbeat(heartbeat) = &message.message else { return false };
        if !self.in_order || self.is_open(message) {
            return false;
        }
        let key = (message.registration.address(), message.source.clone());
        self.behind || (heartbeat.head_sequence.is_some() && self.sessions.contains_key(&key))
    }

    /// Removes a worker that deregisters itself, if the message is of the open incarnation. While the log is read from
    /// an earlier position, the lease removes the worker instead.
    async fn remove_worker(&self, message: &BrokerMessage) -> Result<(), IngestError> {
        if self.behind || !self.is_open(message) {
            return Ok(());
        }
        let address = message.registration.address();
        tracing::info!(worker = %address, "the worker deregistered itself");
        self.ingest.remove(address).await.map(|_blocks| ())
    }

    /// Whether a session of the message's source and incarnation is open.
    fn is_open(&self, message: &BrokerMessage) -> bool {
        let key = (message.registration.address(), message.source.clone());
        self.sessions.get(&key).is_some_and(|open| {
            open.incarnation == message.incarnation && !open.session.fenced().is_cancelled()
        })
    }

    /// Returns the open session of a message's source and incarnation. Opens a session if there is none, or if the
    /// present session is fenced. A heartbeat also renews the worker's registration.
    async fn session(
        &mut self,
        message: &BrokerMessage,
        age: Duration,
    ) -> Result<&OpenSession, TakeError> {
        let key = (message.registration.address(), message.source.clone());
        let is_open = self.is_open(message);
        // Heartbeats are rare, and carry changes of the registration.
        if !is_open || matches!(message.message, SourceMessage::Heartbeat(_)) {
            let in_order = self.in_order && self.behind;
            let _known = self.ingest.introduce(&message.registration, in_order).await?;
        }
        let fenced = |open: &OpenSession| open.session.fenced().is_cancelled();
        if !is_open || self.sessions.get(&key).is_none_or(fenced) {
            let in_order = self.in_order && matches!(message.message, SourceMessage::Batch(_));
            let is_behind = self.behind || self.in_order;
            let arrival = Arrival::Broker { in_order, is_behind };
            let accepted = self.ingest.open(&message.hello(), arrival).await?;
            let incarnation = message.incarnation;
            let open = OpenSession { session: accepted.session, incarnation, is_live: false };
            if let Some(before) = self.sessions.insert(key.clone(), open) {
                before.session.close().await;
            }
        }
        let is_now = message.registration.lease.is_none_or(|lease| age < lease);
        let open = self.sessions.get_mut(&key).ok_or(TakeError::Refused(IngestError::Failed))?;
        if is_now && !open.is_live {
            open.is_live = true;
            if !self.behind && self.in_order {
                open.session.caught_up().await;
            }
        }
        Ok(open)
    }

    /// Marks all sources as behind: the next messages are old, or none arrive.
    pub(super) async fn fall_behind(&mut self) {
        self.behind = true;
        self.ingest.set_input_paused(true);
        for open in self.sessions.values_mut() {
            open.is_live = false;
            open.session.behind().await;
        }
    }

    /// Marks the live sources as caught up: all messages were read.
    pub(super) async fn caught_up(&mut self) {
        self.behind = false;
        self.ingest.set_input_paused(false);
        for open in self.sessions.values().filter(|open| open.is_live) {
            open.session.caught_up().await;
        }
    }

    /// Closes all sessions. The next message of a source reopens its session.
    pub(super) async fn close_sessions(&mut self) {
        self.behind = false;
        self.ingest.set_input_paused(false);
        for open in mem::take(&mut self.sessions).into_values() {
            open.session.close().await;
        }
    }

    /// Closes all sessions whose stream was fenced by a newer stream of the same source.
    pub(super) async fn close_fenced(&mut self) {
        let over = |open: &OpenSession| open.session.fenced().is_cancelled();
        let keys = self.sessions.iter().filter(|(_, open)| over(open));
        let keys: Vec<_> = keys.map(|(key, _)| key.clone()).collect();
        for key in keys {
            if let Some(open) = self.sessions.remove(&key) {
                open.session.close().await;
            }
        }
    }

    /// Whether all live sources have caught up.
    pub(super) fn is_settled(&self) -> bool {
        self.sessions.values().all(|open| !open.is_live || open.session.is_settled())
    }

    /// Whether any worker is registered.
    pub(super) fn knows_workers(&self) -> bool {
        !self.ingest.is_empty()
    }

    /// The registry of workers.
    pub(super) fn ingest(&self) -> &Arc<Ingest> {
        &self.ingest
    }
}

/// Checks that a message concerns the worker of its subject, because the broker restricts publishers by subject.
fn check_subject(
    subject: &str,
    namespace: &Namespace,
    message: &BrokerMessage,
) -> Result<(), TakeError> {
    let address = message.registration.address();
    let expected = match &message.message {
        SourceMessage::Batch(batch) => events_subject(&address, batch.dp_rank),
        SourceMessage::Heartbeat(_) | SourceMessage::Goodbye => heartbeats_subject(&address),
    };
    let expected = namespace.subject(expected);
    if subject == expected { Ok(()) } else { Err(TakeError::Subject { expected }) }
}
