//! Publishes batches over core NATS.

use super::config::FLUSH_BATCHES;
use super::error::BrokerError;
use super::session::{End, NatsSession, Position};
use async_nats::client::PublishErrorKind;
use kvasir_feed::journal::Batch;
use tokio::select;

/// Publishes the current incarnation over one connection of core NATS, which confirms no message. Returns when the
/// incarnation is over, or the rest is published after a stop.
pub(super) async fn publish(
    session: &mut NatsSession<'_>,
    position: &mut Position,
) -> Result<End, BrokerError> {
    let mut news = session.feed.news();
    loop {
        session.beat_if_due(position).await?;
        let stopping = session.stop.is_cancelled();
        let Some(batches) = session.next_batches(position, FLUSH_BATCHES)? else {
            return Ok(End::NewIncarnation);
        };
        if let Some(last) = batches.last() {
            for batch in &batches {
                send(session, position, batch).await?;
            }
            session.connection.flush().await?;
            position.next = last.sequence().checked_add(1);
            session.published(last.sequence());
            continue;
        }
        if stopping {
            return Ok(End::Stopped);
        }
        select! {
            // Cannot fail: the source outlives its publisher.
            _known = news.changed() => session.take_news(&mut news),
            _ = session.heartbeats.tick() => session.publish_heartbeat(position).await?,
            () = session.stop.cancelled() => {}
            () = session.connection.closed() => return Err(BrokerError::Lost),
        }
    }
}

/// Sends a batch. Skips and reports a batch over the server's size limit.
async fn send(
    session: &NatsSession<'_>,
    position: &Position,
    batch: &Batch,
) -> Result<(), BrokerError> {
    let (subject, _id, message) = position.envelope.batch(batch);
    let client = session.connection.client();
    let Err(error) = session.connection.with(client.publish(subject, message)).await? else {
        return Ok(());
    };
    let PublishErrorKind::MaxPayloadExceeded = error.kind() else {
        return Err(BrokerError::Publish(error.to_string()));
    };
    session.report_skipped(batch, &error.to_string());
    Ok(())
}
