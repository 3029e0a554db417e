use super::config::{BATCHES_AT_ONCE, FLUSH_TIMEOUT, UNSENT_BYTES_MAX, ZmqStatus};
use super::frames;
use super::payload::Encoder;
use super::room::Room;
use bytes::Bytes;
use kvasir_feed::feed::Feed;
use kvasir_feed::journal::{Batch, RangeError};
use kvasir_proto::types::Incarnation;
use std::sync::Arc;
use tokio::select;
use tokio::sync::watch;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use zeromq::{PubSocket, Socket, SocketSend};

/// Publishes a source's batches to ZMQ subscribers.
pub(super) struct ZmqPublisher {
    feed: Arc<Feed>,
    socket: PubSocket,
    topic: Bytes,
    room: Room,
    status: Arc<watch::Sender<ZmqStatus>>,
}

/// Progress of publishing an incarnation.
struct Position {
    incarnation: Incarnation,
    /// Number of the next batch; `None` once the last number was published.
    next: Option<u64>,
    encoder: Encoder,
}

impl ZmqPublisher {
    pub(super) fn new(
        feed: Arc<Feed>,
        socket: PubSocket,
        topic: Bytes,
        status: Arc<watch::Sender<ZmqStatus>>,
    ) -> Self {
        Self { feed, socket, topic, room: Room::new(UNSENT_BYTES_MAX), status }
    }

    /// Publishes the feed until `stop` is cancelled, then publishes the rest of the journal. Publishes nothing if
    /// stopped before the incarnation is settled.
    pub(super) async fn run(mut self, stop: CancellationToken) {
        select! {
            () = stop.cancelled() => return,
            () = self.feed.until_settled() => {}
        }
        let mut news = self.feed.news();
        let mut position = self.position();
        loop {
            let stopping = stop.is_cancelled();
            let Some(batches) = self.next_batches(&mut position) else {
                position = self.position();
                continue;
            };
            if !batches.is_empty() {
                self.publish(&mut position, &batches).await;
                continue;
            }
            if stopping {
                break;
            }
            select! {
                // Cannot fail: the source outlives its publisher.
                _known = news.changed() => {}
                () = stop.cancelled() => {}
            }
        }
        if timeout(FLUSH_TIMEOUT, self.room.emptied()).await.is_err() {
            let source = self.feed.name();
            tracing::info!(source, "subscribers have not read all published batches");
        }
        for error in self.socket.unbind_all().await {
            tracing::debug!(%error, "the PUB socket is not closed in order");
        }
    }

    /// Returns the start position in the current incarnation: this agent's first batch. A replay has the batches that
    /// an earlier agent published.
    fn position(&self) -> Position {
        let status = self.feed.status();
        // A replay has the batches that an earlier agent published.
        let incarnation = status.incarnation;
        let first = status.own_first;
        self.status
            .send_modify(|status| (status.incarnation, status.published) = (incarnation, None));
        let encoder = Encoder::new(incarnation, self.feed.block_size());
        Position { incarnation, next: Some(first), encoder }
    }

    /// Returns the next batches of an incarnation, perhaps an empty list, or `None` once the incarnation is over. Skips
    /// and counts batches that the journal no longer has.
    fn next_batches(&self, position: &mut Position) -> Option<Vec<Arc<Batch>>> {
        while let Some(next) = position.next {
            match self.feed.range(position.incarnation, next..=u64::MAX, BATCHES_AT_ONCE) {
                Ok(range) => return Some(range.batches),
                Err(RangeError::TooOld { oldest, .. }) => {
                    let lost = oldest.saturating_sub(next);
                    tracing::warn!(source = self.feed.name(), lost, "the journal was overrun");
                    self.status.send_modify(|status| status.skipped_batches += lost);
                    position.next = Some(oldest);
                }
                // An incarnation's head never decreases, so only another incarnation can be the reason.
                Err(RangeError::WrongIncarnation { .. } | RangeError::Ahead { .. }) => return None,
            }
        }
        let over = self.feed.status().incarnation != position.incarnation;
        (!over).then(Vec::new)
    }

    /// Sends batches. Skips and counts a batch that has no room or cannot be sent: subscribers notice the gap.
    async fn publish(&mut self, position: &mut Position, batches: &[Arc<Batch>]) {
        let mut unsent = 0;
        for batch in batches {
            let payload = self.room.try_take(position.encoder.encode(batch));
            let Some(payload) = payload else {
                unsent += 1;
                continue;
            };
            let message = frames::live(&self.topic, batch.sequence(), payload);
            if let Err(error) = self.socket.send(message).await {
                tracing::warn!(source = self.feed.name(), %error, "a batch is not published");
                unsent += 1;
            }
        }
        let last = batches.last().map(|batch| batch.sequence());
        position.next = last.and_then(|last| last.checked_add(1));
        let sent = u64::try_from(batches.len()).unwrap_or(u64::MAX).saturating_sub(unsent);
        self.status.send_modify(|status| {
            status.published = last;
            status.published_batches += sent;
            status.unsent_batches += unsent;
        });
    }
}
