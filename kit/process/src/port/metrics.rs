use super::config::IN_FLIGHT_BYTES_MAX;
use crate::net::{ConnectionMetrics, Reasons, TooLong};
use prometheus_client::{
    metrics::{counter::Counter, gauge::Gauge},
    registry::Registry,
};

/// Metrics of a gRPC port.
#[derive(Debug, Clone, Default)]
pub struct PortMetrics {
    /// Connections.
    pub(super) connections: ConnectionMetrics,
    /// Requests with one answer that are under way.
    pub(super) in_flight: Gauge,
    /// Such requests refused, because there were too many.
    pub(super) requests_refused: Counter,
    /// Streams that are open.
    pub(super) streams: Gauge,
    /// Those of them that are not publishers'.
    pub(super) asking_streams: Gauge,
    /// Streams refused, because there were too many.
    pub(super) streams_refused: Counter,
    /// Calls that ended for a message that was too long.
    pub(super) too_long: TooLong,
    /// Bytes of messages that have not arrived whole.
    pub(super) message_bytes: Gauge,
    /// Bytes of large parts of answers that clients have not taken.
    pub(super) large_answer_bytes: Gauge,
    /// The same of small parts.
    pub(super) small_answer_bytes: Gauge,
    /// Bytes of publishers' batches that wait for their answers.
    pub(super) batch_bytes: Gauge,
    /// All of these bytes together.
    pub(super) in_flight_bytes: Gauge,
    /// Calls denied, by what the caller lacks.
    pub(super) denied: Reasons,
    /// Calls refused or ended by a limit.
    pub(super) limited: Reasons,
}

impl PortMetrics {
    /// Registers the metrics.
    pub fn register(&self, registry: &mut Registry) {
        self.connections.register(registry, "grpc");
        let help = "Calls refused or ended by a limit, by the limit";
        self.limited.register(registry, "grpc_limited", help);
        registry.register(
            "grpc_requests_in_flight",
            "Requests with one answer under way",
            self.in_flight.clone(),
        );
        registry.register(
            "grpc_requests_refused",
            "Requests with one answer refused: the most were under way, or an eighth of them in one connection",
            self.requests_refused.clone(),
        );
        let help = "Calls denied: their caller has no identity, or its identity lacks the role";
        self.denied.register(registry, "grpc_denied", help);
        registry.register("grpc_streams", "Open streams", self.streams.clone());
        registry.register(
            "grpc_asking_streams",
            "Open streams other than PublishEvents",
            self.asking_streams.clone(),
        );
        registry.register(
            "grpc_streams_refused",
            "Streams refused: the most were open",
            self.streams_refused.clone(),
        );
        registry.register(
            "grpc_messages_too_long",
            "Calls that ended because a message of the client was longer than the service accepts, by call",
            self.too_long.clone(),
        );
        let help = "Bytes of requests that have arrived in part";
        registry.register("grpc_partial_message_bytes", help, self.message_bytes.clone());
        let help = "Bytes of answers that clients have not taken, in parts beyond 64 KiB";
        registry.register("grpc_large_answer_bytes", help, self.large_answer_bytes.clone());
        let help = "Bytes of answers that clients have not taken, in parts of up to 64 KiB";
        registry.register("grpc_small_answer_bytes", help, self.small_answer_bytes.clone());
        let help = "Bytes of publishers' batches that wait for their answers";
        registry.register("grpc_unanswered_batch_bytes", help, self.batch_bytes.clone());
        let help = "Bytes of requests, batches and answers on their way, over all connections: the sum of the four above";
        registry.register("grpc_in_flight_bytes", help, self.in_flight_bytes.clone());
        let limit = Gauge::<i64>::default();
        limit.set(i64::try_from(IN_FLIGHT_BYTES_MAX).unwrap_or(i64::MAX));
        let help = "Most bytes that may be on their way, over all connections";
        registry.register("grpc_in_flight_bytes_limit", help, limit);
    }
}
