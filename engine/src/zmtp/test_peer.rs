//! A scripted peer: the test chooses every byte that it sends.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::BytesMut;
use socket2::SockRef;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::yield_now;

use super::frame::{FrameHeader, FrameKind, put_frame};
use super::{Endpoint, Limits, SubEvent, SubSocket};

/// Time limit of a test.
pub(super) const TEST_TIMEOUT: Duration = Duration::from_secs(30);

/// Limits for tests: timeouts expire only if the test causes it.
pub(super) fn patient() -> Limits {
    Limits {
        connect_timeout: TEST_TIMEOUT,
        handshake_timeout: TEST_TIMEOUT,
        heartbeat_interval: TEST_TIMEOUT,
        heartbeat_timeout: 2 * TEST_TIMEOUT,
        silence_timeout: 2 * TEST_TIMEOUT,
        backoff_min: Duration::from_millis(2),
        backoff_max: Duration::from_millis(20),
        ..Limits::DEFAULTS
    }
}

pub(super) fn endpoint(address: SocketAddr) -> Endpoint {
    format!("tcp://{address}").parse().unwrap()
}

pub(super) async fn listener() -> (TcpListener, Endpoint) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = endpoint(listener.local_addr().unwrap());
    (listener, endpoint)
}

pub(super) fn greeting(minor: u8) -> Vec<u8> {
    let mut greeting = vec![0; 64];
    greeting[0] = 0xff;
    greeting[9] = 0x7f;
    greeting[10] = 3;
    greeting[11] = minor;
    greeting[12..16].copy_from_slice(b"NULL");
    greeting
}

pub(super) fn frame(kind: FrameKind, body: &[u8]) -> Vec<u8> {
    let mut output = BytesMut::new();
    put_frame(&mut output, kind, body);
    output.to_vec()
}

pub(super) fn ready(socket_type: &str) -> Vec<u8> {
    let mut body = b"\x05READY\x0bSocket-Type\0\0\0".to_vec();
    body.push(u8::try_from(socket_type.len()).unwrap());
    body.extend_from_slice(socket_type.as_bytes());
    frame(FrameKind::Command, &body)
}

pub(super) fn message(frames: &[&[u8]]) -> Vec<u8> {
    let (last, others) = frames.split_last().unwrap();
    let mut bytes: Vec<u8> = others.iter().flat_map(|body| frame(FrameKind::More, body)).collect();
    bytes.extend(frame(FrameKind::Last, last));
    bytes
}

/// A header that announces `size` bytes in the long form.
pub(super) fn long_header(flags: u8, size: u64) -> Vec<u8> {
    [&[flags | 2], size.to_be_bytes().as_slice()].concat()
}

/// Polls `next` once and drops it.
pub(super) async fn poll_once(sub: &mut SubSocket) -> Option<SubEvent> {
    tokio::select! {
        biased;
        event = sub.next() => Some(event),
        () = yield_now() => None,
    }
}

pub(super) struct TestPeer(TcpStream);

impl TestPeer {
    pub(super) async fn accept(listener: &TcpListener) -> Self {
        Self(listener.accept().await.unwrap().0)
    }

    pub(super) async fn dial(address: SocketAddr) -> Self {
        Self(TcpStream::connect(address).await.unwrap())
    }

    pub(super) async fn send(&mut self, bytes: &[u8]) {
        self.0.write_all(bytes).await.unwrap();
    }

    /// The next frame of the client: its kind and body.
    pub(super) async fn read_frame(&mut self) -> (FrameKind, Vec<u8>) {
        let mut header = Vec::new();
        loop {
            header.push(self.0.read_u8().await.unwrap());
            if let Some(header) = FrameHeader::parse(&header).unwrap() {
                let mut body = vec![0; usize::try_from(header.body_bytes).unwrap()];
                self.0.read_exact(&mut body).await.unwrap();
                return (header.kind, body);
            }
        }
    }

    pub(super) async fn read_greeting(&mut self) {
        let mut bytes = [0; 64];
        self.0.read_exact(&mut bytes).await.unwrap();
        assert_eq!(bytes.as_slice(), greeting(1));
    }

    /// Greeting and READY both ways.
    pub(super) async fn handshake(&mut self, minor: u8, socket_type: &str) {
        self.send(&greeting(minor)).await;
        self.read_greeting().await;
        self.send(&ready(socket_type)).await;
        let (kind, body) = self.read_frame().await;
        assert_eq!(kind, FrameKind::Command);
        assert!(body.starts_with(b"\x05READY"), "{body:?}");
    }

    /// Handshake of a publisher, up to and including the subscription to `topic`.
    pub(super) async fn publisher(&mut self, minor: u8, topic: &[u8]) {
        self.handshake(minor, "PUB").await;
        let subscription = [&[1], topic].concat();
        assert_eq!(self.read_frame().await, (FrameKind::Last, subscription));
    }

    /// Reads until the client disconnects. Returns the remaining bytes.
    pub(super) async fn read_to_end(&mut self) -> Vec<u8> {
        let mut rest = Vec::new();
        // A reset also ends the connection.
        let _end = self.0.read_to_end(&mut rest).await;
        rest
    }

    /// Ends the connection with a reset instead of a FIN.
    pub(super) fn reset(self) {
        SockRef::from(&self.0).set_linger(Some(Duration::ZERO)).unwrap();
    }
}
