use super::inlet::Inlet;
use kvasir_process::telemetry::NotReady;
use std::time::Duration;
use tokio::time::Instant;

/// Agents are heard of in this time: they say every 5 s that they are there.
const HEARTBEATS_WITHIN: Duration = Duration::from_secs(6);
/// A server that has heard the broker, or has something from a checkpoint, is ready after this time whatever
/// it lacks: its answers say what they are worth.
const READY_WITHIN: Duration = Duration::from_secs(60);

/// Until agents were heard and what they hold was fetched. A server with nothing never counts as ready before
/// it has heard the broker.
pub(super) struct Starting {
    not_ready: NotReady,
    since: Instant,
    /// Since when the broker's messages are heard, and none of them are old.
    receiving_since: Option<Instant>,
    /// A checkpoint was restored: what it says is better than nothing.
    restored: bool,
}

impl Starting {
    pub(super) fn new(not_ready: NotReady, inlet: &Inlet) -> Self {
        not_ready.say("waiting for the broker");
        let restored = inlet.knows_workers();
        Self { not_ready, since: Instant::now(), receiving_since: None, restored }
    }

    /// How far it is, for people.
    pub(super) fn report(&self, how_far: String) {
        self.not_ready.say(how_far);
    }

    /// Whether that is over. `receives`: what is published now is heard.
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
            "fetching what agents hold"
        };
        self.not_ready.say(waits_for);
        receiving_for >= READY_WITHIN
    }
}
