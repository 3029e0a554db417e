use super::inlet::Inlet;
use kvasir_process::telemetry::NotReady;
use std::time::Duration;
use tokio::time::Instant;

/// After this time every agent has sent a heartbeat: agents send one every 5 s.
const HEARTBEATS_WITHIN: Duration = Duration::from_secs(6);
/// A server that reaches the broker, or has restored a checkpoint, is ready after this time even if it is incomplete.
/// Its answers report how far they can be trusted.
const READY_WITHIN: Duration = Duration::from_secs(60);

/// Readiness at start. The server is ready once agents have sent heartbeats and their blocks are fetched. An empty
/// server is never ready before it has reached the broker.
pub(super) struct Starting {
    not_ready: NotReady,
    since: Instant,
    /// Time since which current messages arrive.
    receiving_since: Option<Instant>,
    /// Whether a checkpoint was restored.
    restored: bool,
}

impl Starting {
    pub(super) fn new(not_ready: NotReady, inlet: &Inlet) -> Self {
        not_ready.set_reason("waiting for the broker");
        let restored = inlet.knows_workers();
        Self { not_ready, since: Instant::now(), receiving_since: None, restored }
    }

    /// Shows the progress on `/readyz`.
    pub(super) fn report(&self, how_far: String) {
        self.not_ready.set_reason(how_far);
    }

    /// Whether the start is over, so that the server is ready. `receives` is true while current messages arrive.
    /// Updates the reason of unreadiness.
    pub(super) fn is_over(&mut self, inlet: &Inlet, receives: bool) -> bool {
        if !receives {
            return self.restored && self.since.elapsed() >= READY_WITHIN;
        }
        let receiving_for = self.receiving_since.get_or_insert_with(Instant::now).elapsed();
        if inlet.is_settled() && (self.restored || receiving_for >= HEARTBEATS_WITHIN) {
            return true;
        }
        let waits_for = if inlet.is_settled() {
            "waiting for heartbeats of agents"
        } else {
            "fetching the agents' blocks"
        };
        self.not_ready.set_reason(waits_for);
        receiving_for >= READY_WITHIN
    }
}
