use prometheus_client::{
    encoding::{EncodeLabelSet, EncodeLabelValue},
    metrics::{counter::Counter, family::Family, gauge::Gauge},
    registry::Registry,
};

/// Metrics of the messages received over NATS.
#[derive(Debug, Clone)]
pub(super) struct BrokerMetrics {
    /// 1 while connected.
    pub(super) connected: Gauge,
    /// Messages that the connection dropped since they came faster than they were read.
    pub(super) dropped: Counter,
    /// Messages of the stream that are not read yet.
    pub(super) pending: Gauge,
    messages: Family<OutcomeLabels, Counter>,
}

/// Outcome of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, EncodeLabelValue)]
pub(super) enum Outcome {
    /// Handed to its source.
    Taken,
    /// It breaks the contract.
    Malformed,
    /// Its worker or its source is refused; the log says why.
    Refused,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OutcomeLabels {
    outcome: Outcome,
}

impl BrokerMetrics {
    /// Registers the metrics.
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
            "Times that messages were dropped because they arrived faster than they were read",
            metrics.dropped.clone(),
        );
        registry.register(
            "broker_pending",
            "Messages of the stream that are still to be read",
            metrics.pending.clone(),
        );
        registry.register(
            "broker_messages",
            "Messages received over NATS",
            metrics.messages.clone(),
        );
        metrics
    }

    pub(super) fn count(&self, outcome: Outcome) {
        self.messages.get_or_create(&OutcomeLabels { outcome }).inc();
    }
}
