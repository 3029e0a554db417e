use super::inlet::Inlet;
use kvasir_process::telemetry::NotReady;
use std::time::Duration;
use tokio::time::Instant;

/// Agents are heard of in this time: they say every 5 s that they are there.
const HEARD_WITHIN: Duration = Duration::from_secs(6);
/// A server that has heard the broker, or has something from a checkpoint, is ready after this time whatever
/// it lacks: its answers say what they are worth.
const READY_WITHIN: Duration = Duration::from_secs(60);

/// Until agents were heard and what they hold was fetched. A server with nothing never counts as ready before
/// it has heard the broker.
pub(super) struct Starting {
    not_ready: NotReady,
    since: Instant,
    /// Since when the broker's messages are heard, and none of them are old.
    heard_since: Option<Instant>,
    /// A checkpoint was restored: what it says is better than nothing.
    restored: bool,
}

impl Starting {
    pub(super) fn new(not_ready: NotReady, inlet: &Inlet) -> Self {
        not_ready.set_reason("waiting for the broker");
        let restored = inlet.knows_workers();
        Self { not_ready, since: Instant::now(), heard_since: None, restored }
    }

    /// How far it is, for people.
    pub(super) fn say(&self, how_far: String) {
        self.not_ready.set_reason(how_far);
    }

    /// Whether that is over. `hears`: what is published now is heard.
    pub(super) fn is_over(&mut self, inlet: &Inlet, hears: bool) -> bool {
        if !hears {
            return self.restored && self.since.elapsed() >= READY_WITHIN;
        }
        let heard = self.heard_since.get_or_insert_with(Instant::now).elapsed();
        if inlet.is_settled() && (self.restored || heard >= HEARD_WITHIN) {
            return true;
        }
        let waits_for = if inlet.is_settled() {
            "waiting to hear of agents"
        } else {
            "fetching what agents hold"
        };
        self.not_ready.set_reason(waits_for);
        heard >= READY_WITHIN
    }
}
