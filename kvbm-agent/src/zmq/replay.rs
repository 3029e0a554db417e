use super::config::{
    BATCHES_AT_ONCE, REPLAY_STALL_TIMEOUT, REPLAY_UNSENT_BYTES_MAX, REPLAYS_UNSENT_MAX, ZmqStatus,
};
use super::frames;
use super::payload::Encoder;
use super::room::Room;
use bytes::Bytes;
use kvasir_feed::feed::Feed;
use kvasir_feed::journal::{Batch, JournalStatus, RangeError};
use kvasir_proto::types::Incarnation;
use std::sync::Arc;
use tokio::select;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use zeromq::{RouterSocket, Socket, SocketRecv, SocketSend, ZmqError, ZmqMessage};

/// Answers replay requests from the journal, one after the other, like an engine.
pub(super) struct Replayer {
    feed: Arc<Feed>,
    socket: RouterSocket,
    topic: Bytes,
    /// Slots for replays with unsent messages.
    places: Arc<Semaphore>,
    status: Arc<watch::Sender<ZmqStatus>>,
}

/// Why a replay is cancelled. Its peer must request it again.
#[derive(Debug, thiserror::Error)]
enum Broken {
    #[error("the peer has read nothing for {REPLAY_STALL_TIMEOUT:?}")]
    Stalled,
    #[error("{REPLAYS_UNSENT_MAX} other peers do not take their replays")]
    NoPlace,
    #[error("the socket: {0}")]
    Socket(#[from] ZmqError),
}

/// A replay in progress.
struct Replay {
    identity: Bytes,
    incarnation: Incarnation,
    /// Number of the next batch; `None` once the last number was sent.
    next: Option<u64>,
    /// Number of the last batch. Batches that arrive during the replay are not part of it.
    last: u64,
    encoder: Encoder,
    room: Room,
    place: Arc<OwnedSemaphorePermit>,
}

impl Replayer {
    /// Creates the task that answers replay requests, at most [`REPLAYS_UNSENT_MAX`] with unsent batches.
    pub(super) fn new(
        feed: Arc<Feed>,
        socket: RouterSocket,
        topic: Bytes,
        status: Arc<watch::Sender<ZmqStatus>>,
    ) -> Self {
        let places = Arc::new(Semaphore::new(REPLAYS_UNSENT_MAX));
        Self { feed, socket, topic, places, status }
    }

    /// Answers replay requests until `stop` is cancelled, then closes the socket.
    pub(super) async fn run(mut self, stop: CancellationToken) {
        select! {
            () = stop.cancelled() => {}
            () = self.serve() => {}
        }
        for error in self.socket.unbind_all().await {
            tracing::debug!(%error, "the ROUTER socket is not closed in order");
        }
    }

    /// Answers replay requests one after the other. Ignores invalid requests.
    async fn serve(&mut self) {
        self.feed.until_settled().await;
        loop {
            let message = match self.socket.recv().await {
                Ok(message) => message,
                // A bound socket waits for peers, so an error means that it has ended.
                Err(error) => {
                    tracing::error!(source = self.feed.name(), %error, "the replay socket ended");
                    return;
                }
            };
            // Other messages are ignored, as by an engine.
            let Some((identity, start)) = frames::request(&message) else { continue };
            let answered = self.answer(identity, start).await;
            if let Err(error) = &answered {
                tracing::info!(source = self.feed.name(), %error, start, "a replay is cancelled");
            }
            self.status.send_modify(|status| match answered {
                Ok(()) => status.replays += 1,
                Err(_) => status.broken_replays += 1,
            });
        }
    }

    /// Sends the batches from `start` to the newest one, then the end mark. Fails if earlier replays occupy all slots
    /// for [`REPLAY_STALL_TIMEOUT`].
    async fn answer(&mut self, identity: Bytes, start: u64) -> Result<(), Broken> {
        let place = Arc::clone(&self.places).acquire_owned();
        let place = timeout(REPLAY_STALL_TIMEOUT, place).await;
        // The semaphore is never closed.
        let Ok(Ok(place)) = place else { return Err(Broken::NoPlace) };
        let JournalStatus { incarnation, head, .. } = self.feed.status();
        let mut replay = Replay {
            identity,
            incarnation,
            next: head.and(Some(start)),
            last: head.unwrap_or_default(),
            encoder: Encoder::new(incarnation, self.feed.block_size()),
            room: Room::new(REPLAY_UNSENT_BYTES_MAX),
            place: Arc::new(place),
        };
        loop {
            let batches = self.next_batches(&mut replay);
            if batches.is_empty() {
                return self.send(frames::replay_end(&replay.identity)).await;
            }
            for batch in &batches {
                self.send_batch(&mut replay, batch).await?;
            }
        }
    }

    /// Returns the next batches of a replay, or an empty list at its end. If the journal no longer has the start,
    /// continues at the oldest retained batch.
    fn next_batches(&self, replay: &mut Replay) -> Vec<Arc<Batch>> {
        while let Some(next) = replay.next {
            match self.feed.range(replay.incarnation, next..=replay.last, BATCHES_AT_ONCE) {
                Ok(range) => return range.batches,
                Err(RangeError::TooOld { oldest, .. }) => replay.next = Some(oldest),
                // An incarnation that is over has no more batches.
                Err(RangeError::WrongIncarnation { .. } | RangeError::Ahead { .. }) => break,
            }
        }
        Vec::new()
    }

    /// Sends a batch once there is room for it. Fails if the reader takes nothing for [`REPLAY_STALL_TIMEOUT`].
    async fn send_batch(&mut self, replay: &mut Replay, batch: &Batch) -> Result<(), Broken> {
        let payload = replay.room.add_payload(replay.encoder.encode(batch), &replay.place);
        let payload = timeout(REPLAY_STALL_TIMEOUT, payload).await;
        let Ok(Some(payload)) = payload else { return Err(Broken::Stalled) };
        let sequence = batch.sequence();
        self.send(frames::reply(&replay.identity, &self.topic, sequence, payload)).await?;
        replay.next = sequence.checked_add(1);
        self.status.send_modify(|status| status.replayed_batches += 1);
        Ok(())
    }

    async fn send(&mut self, message: ZmqMessage) -> Result<(), Broken> {
        let sent = timeout(REPLAY_STALL_TIMEOUT, self.socket.send(message)).await;
        Ok(sent.map_err(|_late| Broken::Stalled)??)
    }
}
