use kvasir_process::net::Patience;
use std::{net::SocketAddr, time::Duration};

/// The gRPC port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GrpcConfig {
    /// Address to listen on.
    pub listen: SocketAddr,
    /// Most requests with one answer at a time, over all connections.
    pub max_in_flight: usize,
    /// Most connections at a time.
    pub max_connections: usize,
    /// Whether each request gets a span.
    pub spans: bool,
}

/// Most streams of one connection at a time.
pub(super) const CONNECTION_STREAMS_MAX: u32 = 256;
/// Most streams (`FindMatchesStream`, `DumpWorker`, `PublishEvents`) at a time, over all connections.
pub(super) const STREAMS_MAX: usize = 1_024;
/// Largest message to the health and reflection services, in bytes.
pub(super) const SIDE_MESSAGE_BYTES_MAX: usize = 4 << 10;
/// Longest time until a response begins: that of a request with one message includes reading it.
pub(super) const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);
/// An idle connection is asked for a sign of life this often,
pub(super) const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(30);
/// and has this long to answer.
pub(super) const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a connection may be silent. Answers to the keepalive end a silence: only connections
/// that do not speak HTTP/2 are silent for longer than it gives them.
pub(super) const PATIENCE: Patience =
    Patience { first_byte: Duration::from_secs(10), idle: Duration::from_secs(60) };
const _: () =
    assert!(PATIENCE.idle.as_secs() > KEEPALIVE_INTERVAL.as_secs() + KEEPALIVE_TIMEOUT.as_secs());
/// Longest time until a publisher's hello.
pub(super) const HELLO_TIMEOUT: Duration = Duration::from_secs(10);
/// Answers of one `PublishEvents` stream that wait to be sent.
pub(super) const ANSWERS_QUEUED_MAX: usize = 64;
/// Chunks of one dump that wait to be sent.
pub(super) const CHUNKS_QUEUED_MAX: usize = 2;
/// A dump whose reader takes nothing for this long is given up.
pub(super) const DUMP_STALL_TIMEOUT: Duration = Duration::from_secs(30);
