use super::too_long::TooLong;
use prometheus_client::{
    metrics::{counter::Counter, gauge::Gauge},
    registry::Registry,
};

/// Metrics of the gRPC port.
#[derive(Debug, Clone, Default)]
pub struct GrpcMetrics {
    /// Connections that are open.
    pub(super) connections: Gauge,
    /// Connections closed at once, because there were too many.
    pub(super) connections_refused: Counter,
    /// Requests with one answer that are under way.
    pub(super) in_flight: Gauge,
    /// Such requests refused, because there were too many.
    pub(super) requests_refused: Counter,
    /// Streams that are open.
    pub(super) streams: Gauge,
    /// Streams refused, because there were too many.
    pub(super) streams_refused: Counter,
    /// Calls that ended for a message that was too long.
    pub(super) too_long: TooLong,
}

impl GrpcMetrics {
    /// Registers the metrics.
    #[must_use]
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        registry.register("grpc_connections", "Open gRPC connections", metrics.connections.clone());
        registry.register(
            "grpc_connections_refused",
            "Connections closed at once: --max-connections were open",
            metrics.connections_refused.clone(),
        );
        registry.register(
            "grpc_requests_in_flight",
            "Requests with one answer under way",
            metrics.in_flight.clone(),
        );
        registry.register(
            "grpc_requests_refused",
            "Requests with one answer refused: --max-in-flight were under way",
            metrics.requests_refused.clone(),
        );
        registry.register(
            "grpc_streams",
            "Open streams: FindMatchesStream, DumpWorker, PublishEvents",
            metrics.streams.clone(),
        );
        registry.register(
            "grpc_streams_refused",
            "Streams refused: the most were open",
            metrics.streams_refused.clone(),
        );
        registry.register(
            "grpc_messages_too_long",
            "Calls that ended because a message of the client was longer than 8 MiB, by call",
            metrics.too_long.clone(),
        );
        metrics
    }
}
