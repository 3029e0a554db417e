use super::config::IN_FLIGHT_BYTES_MAX;
use crate::net::{ConnectionMetrics, Reasons, TooLong};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

/// Metrics of a gRPC port.
#[derive(Debug, Clone, Default)]
pub struct PortMetrics {
    /// Metrics of the connections.
    pub(super) connections: ConnectionMetrics,
    /// Active requests with one answer.
    pub(super) in_flight: Gauge,
    /// Requests with one answer that were rejected because too many were active.
    pub(super) requests_refused: Counter,
    /// Open streams.
    pub(super) streams: Gauge,
    /// Open streams other than publishers'.
    pub(super) asking_streams: Gauge,
    /// Streams rejected because too many were open.
    pub(super) streams_refused: Counter,
    /// Calls that ended because of a too long message.
    pub(super) too_long: TooLong,
    /// Bytes of messages that have not arrived completely.
    pub(super) message_bytes: Gauge,
    /// Unread bytes of large answer parts.
    pub(super) large_answer_bytes: Gauge,
    /// Unread bytes of small answer parts.
    pub(super) small_answer_bytes: Gauge,
    /// Bytes of publishers' unanswered batches.
    pub(super) batch_bytes: Gauge,
    /// Total of the bytes above.
    pub(super) in_flight_bytes: Gauge,
    /// Denied calls, by the right that the caller lacks.
    pub(super) denied: Reasons,
    /// Calls rejected or ended by a limit, by reason.
    pub(super) limited: Reasons,
}

impl PortMetrics {
    /// Registers the metrics.
    pub fn register(&self, registry: &mut Registry) {
        self.connections.register(registry, "grpc");
        let help = "gRPC calls rejected or ended by a limit, by limit";
        self.limited.register(registry, "grpc_limited", help);
        registry.register(
            "grpc_requests_in_flight",
            "Active unary gRPC requests",
            self.in_flight.clone(),
        );
        registry.register(
            "grpc_requests_refused",
            "Unary gRPC requests rejected: too many were active, over all connections or on one (an eighth of all)",
            self.requests_refused.clone(),
        );
        let help =
            "gRPC calls denied because the caller has no identity, or the identity lacks the role";
        self.denied.register(registry, "grpc_denied", help);
        registry.register("grpc_streams", "Open gRPC streams", self.streams.clone());
        registry.register(
            "grpc_asking_streams",
            "Open gRPC streams other than PublishEvents",
            self.asking_streams.clone(),
        );
        registry.register(
            "grpc_streams_refused",
            "gRPC streams rejected because the maximum number was open",
            self.streams_refused.clone(),
        );
        registry.register(
            "grpc_messages_too_long",
            "gRPC calls that ended because a client message was longer than the service accepts, by call",
            self.too_long.clone(),
        );
        let help = "Bytes of partially received gRPC requests";
        registry.register("grpc_partial_message_bytes", help, self.message_bytes.clone());
        let help = "Bytes of gRPC answers not yet read by clients, in parts over 64 KiB";
        registry.register("grpc_large_answer_bytes", help, self.large_answer_bytes.clone());
        let help = "Bytes of gRPC answers not yet read by clients, in parts of up to 64 KiB";
        registry.register("grpc_small_answer_bytes", help, self.small_answer_bytes.clone());
        let help = "Bytes of publishers' batches that the server has not yet answered";
        registry.register("grpc_unanswered_batch_bytes", help, self.batch_bytes.clone());
        let help = "Bytes of partial requests, unanswered batches and unread answers, over all gRPC connections";
        registry.register("grpc_in_flight_bytes", help, self.in_flight_bytes.clone());
        let limit = Gauge::<i64>::default();
        limit.set(i64::try_from(IN_FLIGHT_BYTES_MAX).unwrap_or(i64::MAX));
        let help =
            "Maximum bytes of requests, batches and answers in flight, over all gRPC connections";
        registry.register("grpc_in_flight_bytes_limit", help, limit);
    }
}
