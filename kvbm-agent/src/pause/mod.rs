//! Pauses before a peer is tried again: they double, and differ between processes, so that a fleet
//! does not return in step.

use kvasir_engine::zmtp::Backoff;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::time::Duration;
use tokio::select;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

/// From this,
const PAUSE_MIN: Duration = Duration::from_millis(100);
/// up to this.
const PAUSE_MAX: Duration = Duration::from_secs(5);

/// The pauses before one peer.
pub(crate) struct Pauses(Backoff);

impl Pauses {
    pub(crate) fn new() -> Self {
        Self(Backoff::new(PAUSE_MIN, PAUSE_MAX))
    }

    /// The peer was of use: the next pause is short again.
    pub(crate) fn reset(&mut self) {
        self.0.reset();
    }

    /// Waits; returns false at once when `stop` is cancelled.
    pub(crate) async fn wait(&mut self, stop: &CancellationToken) -> bool {
        select! {
            () = stop.cancelled() => false,
            () = sleep(self.0.next_delay(random())) => true,
        }
    }
}

fn random() -> u32 {
    let [a, b, c, d, ..] = RandomState::new().hash_one(0).to_le_bytes();
    u32::from_le_bytes([a, b, c, d])
}
