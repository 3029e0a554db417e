use parking_lot::Mutex;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

/// Status of the NATS connection, for the operator.
#[derive(Debug, Default)]
pub struct SyncStatus {
    connected: Gauge,
    unsent: Counter,
    malformed: Counter,
    slow: Counter,
    problem: Mutex<Option<String>>,
}

impl SyncStatus {
    /// Registers the metrics.
    pub fn register(&self, registry: &mut Registry) {
        let registry = registry.sub_registry_with_prefix("router");
        let help = "1 while the router is connected to NATS";
        registry.register("nats_connected", help, self.connected.clone());
        let help =
            "Sync messages to router replicas that were not sent; later digests repair the loss";
        registry.register("sync_unsent", help, self.unsent.clone());
        let help = "Messages received over NATS that could not be decoded";
        registry.register("nats_malformed", help, self.malformed.clone());
        let help = "Times that NATS messages were lost because the router read too slowly";
        registry.register("nats_slow_consumer", help, self.slow.clone());
    }

    /// The current problem; `None` if the connection is up, or NATS is not used.
    #[must_use]
    pub fn problem(&self) -> Option<String> {
        self.problem.lock().as_ref().map(|why| format!("nats: {why}"))
    }

    pub(super) fn is_connected(&self) -> bool {
        self.connected.get() == 1
    }

    pub(super) fn connected(&self) {
        self.connected.set(1);
        *self.problem.lock() = None;
    }

    pub(super) fn lost(&self, why: &str) {
        self.connected.set(0);
        let before = self.problem.lock().replace(why.to_owned());
        if before.as_deref() != Some(why) {
            tracing::warn!(why, "no connection to NATS");
        }
    }

    pub(super) fn unsent(&self) {
        self.unsent.inc();
    }

    pub(super) fn malformed(&self) {
        self.malformed.inc();
    }

    pub(super) fn slow(&self) {
        self.slow.inc();
    }
}
