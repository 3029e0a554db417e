use kvasir_process::net::Patience;
use kvasir_proto::limits::GRPC_MESSAGE_BYTES_MAX;
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

/// One connection may have this part of all that is bounded over all connections.
pub(super) const CONNECTION_PART: usize = 8;
/// Most calls of one connection at a time, whatever they are: further ones wait at the client.
pub(super) const CONNECTION_CALLS_MAX: u32 = 128;
/// Most streams (`FindMatchesStream`, `DumpWorker`, `PublishEvents`) at a time, over all connections.
pub(super) const STREAMS_MAX: usize = 1_024;
/// Of these, so many are for `PublishEvents` only.
pub(super) const PUBLISHER_STREAMS_RESERVED: usize = 256;
/// Bytes of messages that have not arrived whole, over all connections.
pub(super) const MESSAGE_BYTES_MAX: usize = 256 << 20;
/// The same of one connection: 8 publishers may each be sending the largest message.
pub(super) const CONNECTION_MESSAGE_BYTES_MAX: usize = 8 * GRPC_MESSAGE_BYTES_MAX;
/// Bytes of parts of answers beyond 64 KiB that clients have not taken, over all connections.
pub(super) const LARGE_ANSWER_BYTES_MAX: usize = 256 << 20;
/// The same of parts of up to 64 KiB, so that large answers never hold up small ones.
pub(super) const SMALL_ANSWER_BYTES_MAX: usize = 64 << 20;
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
pub(super) const PATIENCE: Patience = Patience {
    first_byte: Duration::from_secs(10),
    idle: Duration::from_secs(60),
    untaken: Duration::from_secs(30),
};
const _: () =
    assert!(PATIENCE.idle.as_secs() > KEEPALIVE_INTERVAL.as_secs() + KEEPALIVE_TIMEOUT.as_secs());
/// Longest time until a request with one message is there, beyond a second for each 512 KiB of it.
pub(super) const BODY_TIMEOUT: Duration = Duration::from_secs(2);
/// Longest time from the first to the last byte of a message of a stream, beyond the same.
pub(super) const MESSAGE_TIMEOUT: Duration = Duration::from_secs(10);
/// A `FindMatchesStream` in which nothing is asked for this long, or up to twice that, is ended.
pub(super) const QUERY_STREAM_IDLE: Duration = Duration::from_secs(60);
/// Longest time until a publisher's hello.
pub(super) const HELLO_TIMEOUT: Duration = Duration::from_secs(10);
/// Answers of one `PublishEvents` stream that wait to be sent.
pub(super) const ANSWERS_QUEUED_MAX: usize = 64;
/// Chunks of one dump that wait to be sent.
pub(super) const CHUNKS_QUEUED_MAX: usize = 2;
/// A dump whose reader takes nothing for this long is given up.
pub(super) const DUMP_STALL_TIMEOUT: Duration = Duration::from_secs(20);
// The client is told that its dump is over if it reads on in time; then its connection is closed.
const _: () = assert!(DUMP_STALL_TIMEOUT.as_secs() < PATIENCE.untaken.as_secs());
