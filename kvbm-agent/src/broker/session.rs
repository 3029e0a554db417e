//! State of one connection, shared by core NATS and JetStream.

use super::config::BrokerStatus;
use super::connection::Connection;
use super::error::BrokerError;
use super::message::IncarnationEnvelope;
use async_nats::client::PublishErrorKind;
use bytes::Bytes;
use futures::FutureExt;
use kvasir_feed::feed::{Feed, News};
use kvasir_feed::journal::{Batch, RangeError};
use kvasir_proto::types::Incarnation;
use std::mem;
use std::sync::Arc;
use tokio::sync::watch;
use tokio::time::Interval;
use tokio_util::sync::CancellationToken;

/// How the publication of an incarnation ended.
pub(super) enum End {
    Stopped,
    NewIncarnation,
}

/// Progress of publishing an incarnation.
pub(super) struct Position {
    pub(super) incarnation: Incarnation,
    /// Number of the next batch to publish; `None` once the last number was published.
    pub(super) next: Option<u64>,
    pub(super) envelope: IncarnationEnvelope,
}

/// One connection, with the state to publish over it.
pub(super) struct NatsSession<'a> {
    pub(super) feed: &'a Feed,
    pub(super) status: &'a watch::Sender<BrokerStatus>,
    pub(super) stop: &'a CancellationToken,
    pub(super) connection: Connection,
    pub(super) heartbeats: Interval,
    /// Count of the source's changes for which an early heartbeat was requested.
    pub(super) changes: u64,
}

impl NatsSession<'_> {
    /// Returns the next batches of an incarnation, perhaps an empty list, or `None` once the incarnation is over. Skips
    /// and counts batches that the journal no longer has.
    pub(super) fn next_batches(
        &self,
        position: &mut Position,
        batches_max: usize,
    ) -> Result<Option<Vec<Arc<Batch>>>, BrokerError> {
        while let Some(next) = position.next {
            match self.feed.range(position.incarnation, next..=u64::MAX, batches_max) {
                Ok(range) => return Ok(Some(range.batches)),
                Err(RangeError::TooOld { oldest, .. }) => {
                    let lost = oldest.saturating_sub(next);
                    tracing::warn!(source = self.feed.name(), lost, "the journal was overrun");
                    self.status.send_modify(|status| status.skipped_batches += lost);
                    position.next = Some(oldest);
                }
                Err(RangeError::WrongIncarnation { .. }) => return Ok(None),
                Err(error @ RangeError::Ahead { .. }) => return Err(error.into()),
            }
        }
        Ok(Some(Vec::new()))
    }

    /// Logs and counts a batch that the server refuses. It is skipped, because the server would refuse it forever.
    pub(super) fn report_skipped(&self, batch: &Batch, error: &str) {
        let source = self.feed.name();
        let sequence = batch.sequence();
        tracing::warn!(source, sequence, error, "a batch is not published");
        let text = format!("batch {sequence} is not published: {error}");
        self.status.send_modify(|status| {
            status.skipped_batches += 1;
            status.error = Some(text.into());
        });
    }

    /// Records that an incarnation is published up to a batch.
    pub(super) fn published(&self, sequence: u64) {
        self.status.send_modify(|status| status.published = Some(sequence));
    }

    /// Sends a heartbeat if it is due.
    pub(super) async fn beat_if_due(&mut self, position: &Position) -> Result<(), BrokerError> {
        match self.heartbeats.tick().now_or_never() {
            Some(_due) => self.publish_heartbeat(position).await,
            None => Ok(()),
        }
    }

    /// Sends a heartbeat.
    pub(super) async fn publish_heartbeat(&self, position: &Position) -> Result<(), BrokerError> {
        match self.feed.heartbeat(position.incarnation) {
            Some(heartbeat) => self.send(position.envelope.heartbeat(heartbeat)).await,
            None => Ok(()),
        }
    }

    /// Processes news. A change of the source's state makes a heartbeat due immediately.
    pub(super) fn take_news(&mut self, news: &mut watch::Receiver<News>) {
        let changes = news.borrow_and_update().changes;
        if mem::replace(&mut self.changes, changes) != changes {
            self.heartbeats.reset_immediately();
        }
    }

    /// Sends a message that is not a batch.
    pub(super) async fn send(
        &self,
        (subject, message): (String, Bytes),
    ) -> Result<(), BrokerError> {
        let sent = self.connection.with(self.connection.client().publish(subject, message)).await?;
        // Such a small limit of the server is reported for batches.
        sent.or_else(|error| match error.kind() {
            PublishErrorKind::MaxPayloadExceeded => Ok(()),
            PublishErrorKind::InvalidSubject | PublishErrorKind::Send => {
                Err(BrokerError::Publish(error.to_string()))
            }
        })
    }
}
