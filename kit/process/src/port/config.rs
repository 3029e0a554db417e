use crate::net::Patience;
use kvasir_proto::limits::GRPC_MESSAGE_BYTES_MAX;
use std::time::Duration;

/// What the calls of a gRPC port may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PortConfig {
    /// Most requests with one answer at a time, over all connections.
    pub max_in_flight: usize,
    /// Most connections at a time.
    pub max_connections: usize,
    /// Largest message of a client, in bytes: a connection may have eight of them half sent.
    pub message_bytes_max: usize,
    /// Most calls of one connection at a time, whatever they are: further ones wait at the client.
    pub connection_calls_max: u32,
    /// Most streams of one connection but for publishers'.
    pub connection_asking_streams_max: usize,
    /// Whether each request gets a span.
    pub spans: bool,
}

/// One connection may have this part of all that is bounded over all connections.
pub(super) const CONNECTION_PART: usize = 8;
/// Most calls of one connection at a time at ports whose calls are answered at once.
pub const CONNECTION_CALLS_MAX: u32 = 128;
/// Most streams at a time, over all connections.
pub(super) const STREAMS_MAX: usize = 1_024;
/// Of these, so many are for publishers only,
pub(super) const PUBLISH_STREAMS_RESERVED: usize = 256;
/// and so many of the others for streams with one request only.
pub(super) const READ_STREAMS_RESERVED: usize = 64;
/// Most calls of health and reflection at a time, over all connections: clients may watch the health of a server on each,
pub(super) const SIDE_CALLS_MAX: usize = 2_048;
/// and so many on one.
pub(super) const CONNECTION_SIDE_CALLS_MAX: usize = 8;
/// Bytes of messages that have not arrived whole, over all connections.
pub(super) const MESSAGE_BYTES_MAX: usize = 256 << 20;
/// Of one connection, so many of the largest message: 8 publishers may each be sending one.
pub(super) const CONNECTION_MESSAGES_MAX: usize = 8;
/// Bytes of parts of answers beyond 64 KiB that clients have not taken, over all connections.
pub(super) const LARGE_ANSWER_BYTES_MAX: usize = 256 << 20;
/// The same of parts of up to 64 KiB, so that large answers never hold up small ones.
pub(super) const SMALL_ANSWER_BYTES_MAX: usize = 64 << 20;
/// Bytes of batches of publishers that wait for their answers, over all connections: of a publisher whose batch does not fit,
/// nothing more is read until it does.
pub(super) const BATCH_BYTES_MAX: usize = 256 << 20;
// A connection may have a part of it, into which the largest batch must fit.
const _: () = assert!(BATCH_BYTES_MAX / CONNECTION_PART >= GRPC_MESSAGE_BYTES_MAX);
/// All of these bytes together, in both directions.
pub(super) const IN_FLIGHT_BYTES_MAX: usize =
    MESSAGE_BYTES_MAX + LARGE_ANSWER_BYTES_MAX + SMALL_ANSWER_BYTES_MAX + BATCH_BYTES_MAX;
/// Largest message to the health and reflection services, in bytes.
pub(super) const SIDE_MESSAGE_BYTES_MAX: usize = 4 << 10;
/// Longest time until a response begins: that of a request with one message includes reading it.
pub(super) const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);
/// The same of calls that do much before they answer, such as writing a checkpoint of hundreds of millions of blocks.
pub(super) const WORK_TIMEOUT: Duration = Duration::from_secs(3_600);
/// An idle connection is asked for a sign of life this often,
pub(super) const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(30);
/// and has this long to answer.
pub(super) const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(10);
/// A client that takes nothing for this long, while answers wait, is cut off.
pub const UNTAKEN_TIMEOUT: Duration = Duration::from_secs(30);
/// How long a connection may be silent. Answers to the keepalive end a silence: only connections
/// that do not speak HTTP/2 are silent for longer than it gives them.
pub(super) const PATIENCE: Patience = Patience {
    first_byte: Duration::from_secs(10),
    idle: Duration::from_secs(60),
    untaken: UNTAKEN_TIMEOUT,
};
const _: () =
    assert!(PATIENCE.idle.as_secs() > KEEPALIVE_INTERVAL.as_secs() + KEEPALIVE_TIMEOUT.as_secs());
/// Longest time until a request with one message is there, beyond a second for each 512 KiB of it.
pub(super) const BODY_TIMEOUT: Duration = Duration::from_secs(2);
/// Longest time from the first to the last byte of a message of a stream, beyond the same.
pub(super) const MESSAGE_TIMEOUT: Duration = Duration::from_secs(10);
/// A stream of queries ends in which nothing is asked for this long,
pub(super) const QUERY_STREAM_IDLE: Duration = Duration::from_secs(60);
/// or for this long while more than half of such streams are open.
pub(super) const QUERY_STREAM_IDLE_CROWDED: Duration = Duration::from_secs(5);
