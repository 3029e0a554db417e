use std::{net::SocketAddr, time::Duration};

/// The gRPC port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GrpcConfig {
    /// Address to listen on.
    pub listen: SocketAddr,
    /// Most `FindMatches` requests at a time, over all connections.
    pub max_in_flight: usize,
    /// Most connections at a time.
    pub max_connections: usize,
    /// Whether each request gets a span.
    pub spans: bool,
}

/// Most streams of one connection at a time.
pub(super) const CONNECTION_STREAMS_MAX: u32 = 256;
/// Longest time until a response begins.
pub(super) const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);
/// An idle connection is asked for a sign of life this often,
pub(super) const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(30);
/// and has this long to answer.
pub(super) const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(10);
/// Longest time until a publisher's hello.
pub(super) const HELLO_TIMEOUT: Duration = Duration::from_secs(10);
/// Answers of one `PublishEvents` stream that wait to be sent.
pub(super) const ANSWERS_QUEUED_MAX: usize = 64;
/// Chunks of one dump that wait to be sent.
pub(super) const CHUNKS_QUEUED_MAX: usize = 2;
/// A dump whose reader takes nothing for this long is given up.
pub(super) const DUMP_STALL_TIMEOUT: Duration = Duration::from_secs(30);
