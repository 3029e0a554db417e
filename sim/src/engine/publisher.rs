//! The engine's sockets: PUB for live batches, ROUTER for replays from a bounded buffer.
//!
//! Live frames are `[topic, sequence, payload]`. A publisher may state its incarnation with each batch, after the
//! sequence number or after the topic. A replay request is `[identity, "", start]`. The answer is one message for every
//! buffered batch from `start` on, then one with the end marker.

use super::wire::WireForm;
use bytes::Bytes;
use futures::future::{Either, select};
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use zeromq::{
    PubSocket, RouterSocket, Socket, SocketRecv, SocketSend, ZmqError, ZmqMessage, ZmqResult,
};

/// Sequence number that marks the end of a replay.
const END: [u8; 8] = [0xff; 8];
/// Timeout for the peer to accept one message of a replay. A slower peer loses the rest of the replay.
const REPLAY_SEND_TIMEOUT: Duration = Duration::from_secs(10);

/// Configuration of a publisher.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PublisherConfig {
    /// Topic frame of live batches.
    pub topic: String,
    /// Number of batches retained for replays.
    pub buffer_batches: usize,
    /// Wire format of events, which determines the number of frames in a reply.
    pub form: WireForm,
    /// Whether and how each batch states the publisher's incarnation.
    pub epoch: EpochForm,
}

/// Form in which a publisher states its incarnation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum EpochForm {
    /// The publisher does not state an incarnation.
    #[default]
    None,
    /// 16 bytes after the sequence number, as proposed for vLLM.
    Frame,
    /// Text after the topic, as proposed for SGLang.
    Topic,
}

/// Fields that a publisher adds to its batches, constant until a restart: the topic and the incarnation.
#[derive(Debug, Clone)]
struct Stamp {
    topic: Bytes,
    /// Bytes after the sequence number.
    epoch: Vec<u8>,
}

impl Stamp {
    fn draw(config: &PublisherConfig) -> Self {
        let epoch: [u8; 16] = rand::random();
        let mut topic = config.topic.clone();
        if config.epoch == EpochForm::Topic {
            topic += &format!("\0sgl-kv-epoch={:032x}", u128::from_be_bytes(epoch));
        }
        let epoch = if config.epoch == EpochForm::Frame { epoch.to_vec() } else { Vec::new() };
        Self { topic: topic.into(), epoch }
    }

    fn sequence(&self, sequence: u64) -> Bytes {
        [&sequence.to_be_bytes(), self.epoch.as_slice()].concat().into()
    }
}

/// Addresses of a publisher's sockets.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Endpoints {
    /// PUB socket, `tcp://host:port`.
    pub live: String,
    /// ROUTER socket, `tcp://host:port`.
    pub replay: String,
}

impl Endpoints {
    /// Any free ports of the loopback interface.
    #[must_use]
    pub fn any() -> Self {
        let any = "tcp://127.0.0.1:0";
        Self { live: any.to_owned(), replay: any.to_owned() }
    }
}

/// Batches that can be replayed, oldest first.
#[derive(Debug, Default)]
struct Buffer {
    batches: VecDeque<(u64, Bytes)>,
}

type SharedBuffer = Arc<Mutex<Buffer>>;

/// Both sockets of an engine.
pub struct Publisher {
    config: PublisherConfig,
    stamp: Stamp,
    endpoints: Endpoints,
    live: PubSocket,
    buffer: SharedBuffer,
    next_sequence: u64,
    drop_left: u64,
    stop_replay: Option<oneshot::Sender<()>>,
    replay: JoinSet<()>,
}

impl std::fmt::Debug for Publisher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Publisher")
            .field("endpoints", &self.endpoints)
            .field("next_sequence", &self.next_sequence)
            .finish_non_exhaustive()
    }
}

impl Publisher {
    /// Binds both sockets; the first batch gets number 0.
    ///
    /// # Errors
    /// If an endpoint cannot be bound.
    pub async fn bind(config: PublisherConfig, endpoints: &Endpoints) -> ZmqResult<Self> {
        let mut live = PubSocket::new();
        let mut router = RouterSocket::new();
        let endpoints = Endpoints {
            live: live.bind(&endpoints.live).await?.to_string(),
            replay: router.bind(&endpoints.replay).await?.to_string(),
        };
        let buffer = SharedBuffer::default();
        let (stop_replay, stopped) = oneshot::channel();
        let mut replay = JoinSet::new();
        let stamp = Stamp::draw(&config);
        let replies = Replies { form: config.form, stamp: stamp.clone() };
        replay.spawn(serve_replays(router, replies, Arc::clone(&buffer), stopped));
        Ok(Self {
            config,
            stamp,
            endpoints,
            live,
            buffer,
            next_sequence: 0,
            drop_left: 0,
            stop_replay: Some(stop_replay),
            replay,
        })
    }

    /// Addresses of the sockets.
    #[must_use]
    pub fn endpoints(&self) -> &Endpoints {
        &self.endpoints
    }

    /// Number of the last batch; `None` before the first.
    #[must_use]
    pub fn last_sequence(&self) -> Option<u64> {
        self.next_sequence.checked_sub(1)
    }

    /// Numbers and buffers the next `batches` without sending them: subscribers see a gap.
    pub fn drop_next(&mut self, batches: u64) {
        self.drop_left = batches;
    }

    /// Numbers, buffers and sends a batch. As with any PUB socket, a subscriber whose subscription has not arrived yet
    /// misses the batch.
    ///
    /// # Errors
    /// If the socket fails.
    pub async fn publish(&mut self, payload: Vec<u8>) -> ZmqResult<()> {
        let sequence = self.next_sequence;
        let payload = Bytes::from(payload);
        self.next_sequence += 1;
        lock(&self.buffer).push(sequence, payload.clone(), self.config.buffer_batches);
        if self.drop_left > 0 {
            self.drop_left -= 1;
            return Ok(());
        }
        let Stamp { topic, .. } = &self.stamp;
        let frames = vec![topic.clone(), self.stamp.sequence(sequence), payload];
        self.live.send(message(frames)).await
    }

    /// Closes both sockets and restarts at the same endpoints, with an empty buffer and numbers from 0.
    ///
    /// # Errors
    /// If another process took an endpoint meanwhile; the publisher then has no sockets.
    pub async fn restart(&mut self) -> ZmqResult<()> {
        self.close().await;
        *self = Self::bind(self.config.clone(), &self.endpoints).await?;
        Ok(())
    }

    /// Closes both sockets. Their ports are free when it returns.
    pub async fn close(&mut self) {
        if let Some(stop) = self.stop_replay.take() {
            // An error means that the task has ended already.
            let _ = stop.send(());
        }
        while self.replay.join_next().await.is_some() {}
        // An error means that the listener is gone already.
        drop(self.live.unbind_all().await);
        self.live = PubSocket::new();
    }
}

impl Buffer {
    fn push(&mut self, sequence: u64, payload: Bytes, limit: usize) {
        self.batches.push_back((sequence, payload));
        while self.batches.len() > limit {
            self.batches.pop_front();
        }
    }

    fn from(&self, start: u64) -> Vec<(u64, Bytes)> {
        let wanted = self.batches.iter().filter(|(sequence, _)| *sequence >= start);
        wanted.cloned().collect()
    }
}

fn lock(buffer: &SharedBuffer) -> std::sync::MutexGuard<'_, Buffer> {
    buffer.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Layout of the replies to a replay request.
struct Replies {
    form: WireForm,
    stamp: Stamp,
}

async fn serve_replays(
    mut router: RouterSocket,
    replies: Replies,
    buffer: SharedBuffer,
    mut stopped: oneshot::Receiver<()>,
) {
    loop {
        let request = match select(pin!(router.recv()), &mut stopped).await {
            Either::Left((Ok(request), _)) => request,
            // An error of one peer does not affect the others.
            Either::Left((Err(_), _)) => continue,
            Either::Right(_) => break,
        };
        let Some((identity, start)) = parse_request(&request) else {
            continue;
        };
        let answer = pin!(answer(&mut router, &replies, &buffer, identity, start));
        match select(answer, &mut stopped).await {
            // On an error, the peer is disconnected or too slow, and will repeat its request.
            Either::Left(_) => {}
            Either::Right(_) => break,
        }
    }
    drop(router.unbind_all().await);
}

/// Identity and first sequence number, if the message is a valid request.
fn parse_request(request: &ZmqMessage) -> Option<(Bytes, u64)> {
    if request.len() != 3 {
        return None;
    }
    let start = request.get(2)?.as_ref().try_into().ok()?;
    Some((request.get(0)?.clone(), u64::from_be_bytes(start)))
}

async fn answer(
    router: &mut RouterSocket,
    Replies { form, stamp }: &Replies,
    buffer: &SharedBuffer,
    identity: Bytes,
    start: u64,
) -> ZmqResult<()> {
    let batches = lock(buffer).from(start);
    for (sequence, payload) in batches {
        let sequence = stamp.sequence(sequence);
        let frames = reply(*form, &identity, &stamp.topic, sequence, payload);
        send_bounded(router, frames).await?;
    }
    let end = Bytes::from_static(&END);
    send_bounded(router, reply(*form, &identity, &Bytes::new(), end, Bytes::new())).await
}

fn reply(
    form: WireForm,
    identity: &Bytes,
    topic: &Bytes,
    sequence: Bytes,
    payload: Bytes,
) -> ZmqMessage {
    let mut frames = vec![identity.clone(), Bytes::new()];
    if form == WireForm::Map {
        frames.push(topic.clone());
    }
    frames.extend([sequence, payload]);
    message(frames)
}

async fn send_bounded(router: &mut RouterSocket, message: ZmqMessage) -> ZmqResult<()> {
    let sent = tokio::time::timeout(REPLAY_SEND_TIMEOUT, router.send(message)).await;
    sent.unwrap_or(Err(ZmqError::Socket("the peer does not read its replay")))
}

fn message(frames: Vec<Bytes>) -> ZmqMessage {
    ZmqMessage::try_from(frames).expect("a message has frames")
}
