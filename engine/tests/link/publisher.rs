//! An engine's publisher as a link sees it: a PUB socket and a replay ROUTER.

use bytes::Bytes;
use kvasir_engine::decode::timestamp_bits;
use kvasir_engine::zmtp::Endpoint;
use kvasir_proto::types::Fingerprint;
use std::collections::BTreeSet;
use zeromq::{PubSocket, RouterSocket, Socket, SocketRecv, SocketSend, ZmqMessage};

/// How a request for replay is answered.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Answer {
    /// The older format.
    ThreeFrames,
    /// The newer format, with the topic.
    FourFrames,
    /// Omits one batch.
    Without(u64),
    /// No answer.
    Silence,
    /// Only these frames.
    Frames(&'static [&'static [u8]]),
}

pub(crate) struct Publisher {
    live: PubSocket,
    router: RouterSocket,
    live_address: String,
    replay_address: String,
    /// All payloads of this life, without a size limit.
    ring: Vec<Bytes>,
    /// Names of the current blocks.
    held: BTreeSet<u64>,
    life: u32,
    /// Whether each batch states the life.
    pub(crate) states_life: bool,
    /// Answers to the next requests. The last one repeats.
    pub(crate) answers: Vec<Answer>,
    pub(crate) requests: usize,
    /// Topics of batches with even and with odd numbers.
    pub(crate) topics: [&'static str; 2],
}

const ANY: &str = "tcp://127.0.0.1:0";

/// `[ts, [["BlockStored", [name], nil, [4 tokens], 4, nil, "GPU"]], nil]`
pub(crate) fn payload(ts: f64, name: u64) -> Bytes {
    payload_on("GPU", ts, name)
}

/// The payload of [`payload`], on another medium.
pub(crate) fn payload_on(medium: &str, ts: f64, name: u64) -> Bytes {
    let mut out = Vec::new();
    rmp::encode::write_array_len(&mut out, 3).unwrap();
    rmp::encode::write_f64(&mut out, ts).unwrap();
    rmp::encode::write_array_len(&mut out, 1).unwrap();
    rmp::encode::write_array_len(&mut out, 7).unwrap();
    rmp::encode::write_str(&mut out, "BlockStored").unwrap();
    rmp::encode::write_array_len(&mut out, 1).unwrap();
    rmp::encode::write_uint(&mut out, name).unwrap();
    rmp::encode::write_nil(&mut out).unwrap();
    rmp::encode::write_array_len(&mut out, 4).unwrap();
    for token in 0..4 {
        rmp::encode::write_uint(&mut out, name + token).unwrap();
    }
    rmp::encode::write_uint(&mut out, 4).unwrap();
    rmp::encode::write_nil(&mut out).unwrap();
    rmp::encode::write_str(&mut out, medium).unwrap();
    rmp::encode::write_nil(&mut out).unwrap();
    out.into()
}

fn cleared(ts: f64) -> Bytes {
    let mut out = Vec::new();
    rmp::encode::write_array_len(&mut out, 2).unwrap();
    rmp::encode::write_f64(&mut out, ts).unwrap();
    rmp::encode::write_array_len(&mut out, 1).unwrap();
    rmp::encode::write_array_len(&mut out, 1).unwrap();
    rmp::encode::write_str(&mut out, "AllBlocksCleared").unwrap();
    out.into()
}

fn message(frames: &[&[u8]]) -> ZmqMessage {
    let frames: Vec<_> = frames.iter().map(|frame| Bytes::copy_from_slice(frame)).collect();
    ZmqMessage::try_from(frames).unwrap()
}

impl Publisher {
    pub(crate) async fn bind() -> Self {
        let mut live = PubSocket::new();
        let mut router = RouterSocket::new();
        let live_address = live.bind(ANY).await.unwrap().to_string();
        let replay_address = router.bind(ANY).await.unwrap().to_string();
        Self {
            live,
            router,
            live_address,
            replay_address,
            ring: Vec::new(),
            held: BTreeSet::new(),
            life: 0,
            states_life: false,
            answers: vec![Answer::FourFrames],
            requests: 0,
            topics: [""; 2],
        }
    }

    pub(crate) fn live_endpoint(&self) -> Endpoint {
        self.live_address.parse().unwrap()
    }

    pub(crate) fn replay_endpoint(&self) -> Endpoint {
        self.replay_address.parse().unwrap()
    }

    /// Starts a new process on the same ports.
    pub(crate) async fn restart(&mut self) {
        self.life += 1;
        self.ring.clear();
        self.held.clear();
        self.rebind().await;
    }

    /// Ends all connections; the process continues.
    pub(crate) async fn rebind(&mut self) {
        let live = std::mem::replace(&mut self.live, PubSocket::new());
        let router = std::mem::replace(&mut self.router, RouterSocket::new());
        live.close().await;
        router.close().await;
        // A separate task closes the old listener.
        while self.live.bind(&self.live_address).await.is_err() {
            tokio::task::yield_now().await;
        }
        while self.router.bind(&self.replay_address).await.is_err() {
            tokio::task::yield_now().await;
        }
    }

    /// The blocks that a consumer must have.
    pub(crate) fn truth(&self) -> BTreeSet<u64> {
        self.held.clone()
    }

    pub(crate) fn newest(&self) -> Option<u64> {
        (self.ring.len() as u64).checked_sub(1)
    }

    pub(crate) fn fingerprint(&self, sequence: usize) -> Fingerprint {
        let payload = &self.ring[sequence];
        Fingerprint::of(timestamp_bits(payload).unwrap(), payload)
    }

    fn next_ts(&self) -> f64 {
        f64::from(self.life) * 1e6 + self.ring.len() as f64
    }

    /// Stores one more block and announces it.
    pub(crate) async fn publish(&mut self) {
        self.lose();
        self.send_newest().await;
    }

    /// Stores one more block without sending the event live. It is kept only for replay.
    pub(crate) fn lose(&mut self) {
        let name = u64::from(self.life) * 1_000_000 + self.ring.len() as u64;
        self.held.insert(name);
        self.ring.push(payload(self.next_ts(), name));
    }

    pub(crate) async fn clear(&mut self) {
        self.held.clear();
        self.ring.push(cleared(self.next_ts()));
        self.send_newest().await;
    }

    pub(crate) async fn publish_payload(&mut self, payload: &[u8]) {
        self.ring.push(Bytes::copy_from_slice(payload));
        self.send_newest().await;
    }

    async fn send_newest(&mut self) {
        let newest = self.newest().unwrap();
        let topic = self.topic(newest);
        let sequence = self.sequence_frame(newest);
        let payload = self.ring.last().unwrap();
        self.live.send(message(&[topic, &sequence, payload])).await.unwrap();
    }

    fn topic(&self, sequence: u64) -> &'static [u8] {
        self.topics[usize::from(sequence % 2 == 1)].as_bytes()
    }

    fn sequence_frame(&self, sequence: u64) -> Vec<u8> {
        let life = self.states_life.then(|| u128::from(self.life) + 1).map(u128::to_be_bytes);
        [sequence.to_be_bytes().as_slice(), life.as_ref().map_or(&[], |life| life)].concat()
    }

    pub(crate) async fn publish_raw(&mut self, frames: &[&[u8]]) {
        self.live.send(message(frames)).await.unwrap();
    }

    /// Waits for one request and answers it. Cancel-safe while it waits.
    pub(crate) async fn serve_replay(&mut self) {
        let Ok(request) = self.router.recv().await else { return };
        self.requests += 1;
        let request = request.into_vec();
        let [peer, empty, from] = request.as_slice() else { panic!("{request:?}") };
        assert!(empty.is_empty());
        let from = u64::from_be_bytes(from.as_ref().try_into().unwrap());
        let answer = self.answers[0];
        if self.answers.len() > 1 {
            self.answers.remove(0);
        }
        for frames in self.replies(answer, from) {
            let mut all = vec![peer.clone()];
            all.extend(frames);
            // The peer may have disconnected.
            if self.router.send(ZmqMessage::try_from(all).unwrap()).await.is_err() {
                return;
            }
        }
    }

    fn replies(&self, answer: Answer, from: u64) -> Vec<Vec<Bytes>> {
        let head = match answer {
            Answer::Silence => return Vec::new(),
            Answer::Frames(frames) => {
                return vec![frames.iter().map(|frame| Bytes::from_static(frame)).collect()];
            }
            Answer::ThreeFrames => 1,
            Answer::FourFrames | Answer::Without(_) => 2,
        };
        let kept = (0..).zip(&self.ring).skip_while(|(sequence, _)| *sequence < from);
        let sent = kept
            .filter(|(sequence, _)| !matches!(answer, Answer::Without(hole) if hole == *sequence));
        let end = (u64::MAX, &Bytes::new());
        let tail = |(sequence, payload): (u64, &Bytes)| {
            [self.sequence_frame(sequence).into(), payload.clone()]
        };
        let with_head = |at: (u64, &Bytes)| {
            let topic = if at.0 == u64::MAX { b"" } else { self.topic(at.0) };
            let head = [Bytes::new(), Bytes::from_static(topic)].into_iter().take(head);
            head.chain(tail(at)).collect()
        };
        sent.chain([end]).map(with_head).collect()
    }
}
