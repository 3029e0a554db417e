//! Publishes batches to JetStream.

use super::config::{ACK_TIMEOUT, UNACKED_BATCHES_MAX, UNACKED_BYTES_MAX};
use super::connection::Connection;
use super::error::BrokerError;
use super::session::{End, NatsSession, Position};
use async_nats::jetstream::context::{
    Context, ContextBuilder, PublishAckFuture, PublishError, PublishErrorKind,
};
use async_nats::jetstream::message::PublishMessage;
use async_nats::jetstream::stream::{Config, DiscardPolicy};
use futures::FutureExt;
use futures::future::BoxFuture;
use kvasir_feed::journal::Batch;
use kvasir_proto::broker::{
    DUPLICATES_WITHIN, EVENTS_ALL, Namespace, STREAM, STREAM_AGE_DEFAULT, STREAM_BYTES_DEFAULT,
};
use std::collections::VecDeque;
use tokio::select;

/// Creates the stream, unless it exists: an existing stream keeps its limits.
pub(super) async fn open_stream(
    connection: &Connection,
    namespace: &Namespace,
) -> Result<Context, BrokerError> {
    let context = ContextBuilder::new()
        .timeout(ACK_TIMEOUT)
        .ack_timeout(ACK_TIMEOUT)
        // Batches of an earlier incarnation may still be unacknowledged.
        .max_ack_inflight(2 * UNACKED_BATCHES_MAX)
        .build(connection.client().clone());
    let name = namespace.stored(STREAM);
    let config = Config {
        name: name.clone(),
        subjects: vec![namespace.subject(EVENTS_ALL)],
        max_age: STREAM_AGE_DEFAULT,
        max_bytes: i64::try_from(STREAM_BYTES_DEFAULT).unwrap_or(i64::MAX),
        discard: DiscardPolicy::Old,
        duplicate_window: DUPLICATES_WITHIN,
        ..Config::default()
    };
    let made = connection.with(context.get_or_create_stream(config)).await?;
    let _stream = made.map_err(|error| BrokerError::Stream { name, error: error.to_string() })?;
    Ok(context)
}

/// Pending acknowledgement of a batch.
type Acknowledgement = BoxFuture<'static, Result<(), PublishError>>;

/// Unacknowledged batches, oldest first.
#[derive(Default)]
struct Unacked {
    batches: VecDeque<(u64, usize, Acknowledgement)>,
    bytes: usize,
}

impl Unacked {
    fn room(&self) -> usize {
        let full = self.bytes >= UNACKED_BYTES_MAX;
        if full { 0 } else { UNACKED_BATCHES_MAX.saturating_sub(self.batches.len()) }
    }

    fn push(&mut self, sequence: u64, bytes: usize, acknowledgement: Acknowledgement) {
        self.bytes += bytes;
        self.batches.push_back((sequence, bytes, acknowledgement));
    }

    /// Waits for the oldest acknowledgement. Returns `None` if all batches are acknowledged. Cancel safe: dropping the
    /// call loses nothing.
    async fn acknowledged(&mut self) -> Option<Result<u64, BrokerError>> {
        let (sequence, bytes, acknowledgement) = self.batches.front_mut()?;
        let sequence = *sequence;
        let bytes = *bytes;
        let answer = acknowledgement.await;
        self.batches.pop_front();
        self.bytes -= bytes;
        Some(answer.map(|()| sequence).map_err(|error| {
            let error = error.to_string();
            BrokerError::NotAcknowledged { sequence, error }
        }))
    }
}

/// Publishes the current incarnation over one connection, with at most [`UNACKED_BATCHES_MAX`] unacknowledged batches.
/// Returns when the incarnation is over, or the rest was acknowledged after a stop.
pub(super) async fn publish(
    session: &mut NatsSession<'_>,
    position: &mut Position,
    stream: &Context,
) -> Result<End, BrokerError> {
    let mut news = session.feed.news();
    let mut unacked = Unacked::default();
    loop {
        session.beat_if_due(position).await?;
        let stopping = session.stop.is_cancelled();
        // New batches may wait meanwhile: acknowledgements are read in between.
        let Some(batches) = session.next_batches(position, unacked.room())? else {
            return Ok(End::NewIncarnation);
        };
        for batch in batches {
            if unacked.room() == 0 {
                break;
            }
            let acknowledgement = send(session, position, stream, &batch).await?;
            unacked.push(batch.sequence(), batch.wire_bytes(), acknowledgement);
            position.next = batch.sequence().checked_add(1);
        }
        let waiting = !unacked.batches.is_empty();
        if stopping && !waiting {
            return Ok(End::Stopped);
        }
        select! {
            Some(sequence) = unacked.acknowledged() => session.published(sequence?),
            // Cannot fail: the source outlives its publisher.
            _known = news.changed() => session.take_news(&mut news),
            _ = session.heartbeats.tick() => session.publish_heartbeat(position).await?,
            () = session.stop.cancelled(), if !stopping => {}
            () = session.connection.closed() => return Err(BrokerError::Lost),
        }
    }
}

/// Sends a batch, and returns its pending acknowledgement. A batch over the server's size limit is skipped and counts
/// as acknowledged.
async fn send(
    session: &NatsSession<'_>,
    position: &Position,
    stream: &Context,
    batch: &Batch,
) -> Result<Acknowledgement, BrokerError> {
    let (subject, id, message) = position.envelope.batch(batch);
    let message = PublishMessage::build().message_id(id).payload(message);
    let sent = session.connection.with(stream.send_publish(subject, message)).await?;
    match sent {
        Ok(acknowledgement) => Ok(wait(acknowledgement).boxed()),
        Err(error) if error.kind() == PublishErrorKind::MaxPayloadExceeded => {
            session.report_skipped(batch, &error.to_string());
            Ok(async { Ok(()) }.boxed())
        }
        Err(error) => Err(BrokerError::Publish(error.to_string())),
    }
}

async fn wait(acknowledgement: PublishAckFuture) -> Result<(), PublishError> {
    let _stored = acknowledgement.await?;
    Ok(())
}
