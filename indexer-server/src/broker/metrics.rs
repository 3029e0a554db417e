use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

/// Metrics of the messages received over NATS.
#[derive(Debug, Clone)]
pub(super) struct BrokerMetrics {
    /// 1 while connected.
    pub(super) connected: Gauge,
    /// Messages that the connection dropped because they arrived faster than they were read.
    pub(super) dropped: Counter,
    /// Messages of the stream that are still unread.
    pub(super) pending: Gauge,
    messages: Family<OutcomeLabels, Counter>,
}

/// Outcome of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, EncodeLabelValue)]
pub(super) enum Outcome {
    /// Delivered to its source.
    Taken,
    /// The message violates the protocol.
    Malformed,
    /// The message's worker or source is refused. The log shows why.
    Refused,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OutcomeLabels {
    outcome: Outcome,
}

impl BrokerMetrics {
    /// Registers the broker's metrics.
    #[must_use]
    pub(super) fn register(registry: &mut Registry) -> Self {
        let metrics = Self {
            connected: Gauge::default(),
            dropped: Counter::default(),
            pending: Gauge::default(),
            messages: Family::default(),
        };
        registry.register(
            "broker_connected",
            "1 while the NATS server is connected",
            metrics.connected.clone(),
        );
        registry.register(
            "broker_dropped",
            "Times that the NATS connection dropped messages because the server read too slowly",
            metrics.dropped.clone(),
        );
        registry.register(
            "broker_pending",
            "Unread messages in the NATS stream",
            metrics.pending.clone(),
        );
        registry.register(
            "broker_messages",
            "Messages received over NATS, by outcome: taken, malformed or refused",
            metrics.messages.clone(),
        );
        metrics
    }

    pub(super) fn count(&self, outcome: Outcome) {
        self.messages.get_or_create(&OutcomeLabels { outcome }).inc();
    }
}
