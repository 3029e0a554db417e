use crate::net::Patience;
use kvasir_proto::limits::GRPC_MESSAGE_BYTES_MAX;
use std::time::Duration;

/// Limits of a gRPC port's calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PortConfig {
    /// Maximum number of active requests with one answer, over all connections.
    pub max_in_flight: usize,
    /// Maximum number of open connections.
    pub max_connections: usize,
    /// Maximum size of a client's message, in bytes. A connection may have eight incomplete messages of this size.
    pub message_bytes_max: usize,
    /// Maximum number of active calls of one connection, of all kinds. Further calls wait at the client.
    pub connection_calls_max: u32,
    /// Maximum number of streams of one connection, except publishers' streams.
    pub connection_asking_streams_max: usize,
}

/// One connection may use one eighth of each limit that applies to all connections together.
pub(super) const CONNECTION_PART: usize = 8;
/// Maximum number of active calls of one connection, for ports whose calls are answered immediately.
pub const CONNECTION_CALLS_MAX: u32 = 128;
/// Maximum number of open streams, over all connections.
pub(super) const STREAMS_MAX: usize = 1_024;
/// Streams of [`STREAMS_MAX`] that are reserved for publishers.
pub(super) const PUBLISH_STREAMS_RESERVED: usize = 256;
/// Streams, among those not reserved for publishers, that are reserved for streams with one request.
pub(super) const READ_STREAMS_RESERVED: usize = 64;
/// Maximum number of health and reflection calls, over all connections. Clients may watch a server's health on each
/// connection.
pub(super) const SIDE_CALLS_MAX: usize = 2_048;
/// Maximum number of health and reflection calls of one connection.
pub(super) const CONNECTION_SIDE_CALLS_MAX: usize = 8;
/// Maximum bytes of incomplete messages, over all connections.
pub(super) const MESSAGE_BYTES_MAX: usize = 256 << 20;
/// Maximum incomplete messages of one connection, in multiples of the largest message: 8 publishers may each be sending
/// one.
pub(super) const CONNECTION_MESSAGES_MAX: usize = 8;
/// Maximum unread bytes of answer parts above 64 KiB, over all connections.
pub(super) const LARGE_ANSWER_BYTES_MAX: usize = 256 << 20;
/// Maximum unread bytes of answer parts up to 64 KiB. The separate limit keeps large answers from delaying small ones.
pub(super) const SMALL_ANSWER_BYTES_MAX: usize = 64 << 20;
/// Maximum bytes of publishers' unanswered batches, over all connections. If a publisher's batch exceeds the rest, the
/// server stops reading this publisher until the batch fits (backpressure).
pub(super) const BATCH_BYTES_MAX: usize = 256 << 20;
// The largest batch must fit into one connection's share.
const _: () = assert!(BATCH_BYTES_MAX / CONNECTION_PART >= GRPC_MESSAGE_BYTES_MAX);
/// Maximum of all these bytes together, in both directions.
pub(super) const IN_FLIGHT_BYTES_MAX: usize =
    MESSAGE_BYTES_MAX + LARGE_ANSWER_BYTES_MAX + SMALL_ANSWER_BYTES_MAX + BATCH_BYTES_MAX;
/// Maximum size of a message to the health and reflection services, in bytes.
pub(super) const SIDE_MESSAGE_BYTES_MAX: usize = 4 << 10;
/// Timeout until a response begins. For a request with one message, this includes reading the message.
pub(super) const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);
/// Timeout of calls that do much work before they answer, such as writing a checkpoint of hundreds of millions of
/// blocks.
pub(super) const WORK_TIMEOUT: Duration = Duration::from_secs(3_600);
/// Interval of keepalive pings on an idle connection.
pub(super) const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(30);
/// Timeout for the answer to a keepalive ping.
pub(super) const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(10);
/// A client that reads nothing for this long while answers wait is disconnected.
pub const UNTAKEN_TIMEOUT: Duration = Duration::from_secs(30);
/// How long a connection may be silent. Answers to keepalive pings end a silence, so only connections that do not speak
/// HTTP/2 exceed this time.
pub(super) const PATIENCE: Patience = Patience {
    first_byte: Duration::from_secs(10),
    idle: Duration::from_secs(60),
    untaken: UNTAKEN_TIMEOUT,
};
const _: () =
    assert!(PATIENCE.idle.as_secs() > KEEPALIVE_INTERVAL.as_secs() + KEEPALIVE_TIMEOUT.as_secs());
/// Timeout for receiving a request with one message, plus one second per 512 KiB of it.
pub(super) const BODY_TIMEOUT: Duration = Duration::from_secs(2);
/// Timeout from the first to the last byte of a stream's message, plus one second per 512 KiB of it.
pub(super) const MESSAGE_TIMEOUT: Duration = Duration::from_secs(10);
/// Idle timeout of a query stream.
pub(super) const QUERY_STREAM_IDLE: Duration = Duration::from_secs(60);
/// Idle timeout of a query stream while more than half of such streams are open.
pub(super) const QUERY_STREAM_IDLE_CROWDED: Duration = Duration::from_secs(5);
