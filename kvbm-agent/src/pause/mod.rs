//! Pauses before a peer is tried again: they double, and differ between processes, so that a fleet
//! does not return in step. With them, how often the log says that it is away.

use kvasir_engine::throttle::Throttle;
use kvasir_engine::zmtp::Backoff;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::time::Duration;
use tokio::select;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

/// From this,
const PAUSE_MIN: Duration = Duration::from_millis(100);
/// up to this.
const PAUSE_MAX: Duration = Duration::from_secs(5);
/// Time between two log lines of a peer that stays away.
const LOG_INTERVAL: Duration = Duration::from_secs(60);

/// The pauses before one peer.
pub(crate) struct Pauses {
    backoff: Backoff,
    log: Throttle,
}

impl Pauses {
    pub(crate) fn new() -> Self {
        let backoff = Backoff::new(PAUSE_MIN, PAUSE_MAX);
        Self { backoff, log: Throttle::every(LOG_INTERVAL) }
    }

    /// Whether to log that the peer is away, and how many tries since the last line say the same.
    pub(crate) fn admit_line(&mut self) -> Option<u64> {
        self.log.admit(Instant::now())
    }

    /// The peer was of use: that it is away is news, and the next pause is short again.
    pub(crate) fn was_of_use(&mut self) {
        self.log.reset();
        self.backoff.reset();
    }

    /// Waits; returns false at once when `stop` is cancelled.
    pub(crate) async fn wait(&mut self, stop: &CancellationToken) -> bool {
        select! {
            () = stop.cancelled() => false,
            () = sleep(self.backoff.next_delay(random())) => true,
        }
    }
}

fn random() -> u32 {
    let [a, b, c, d, ..] = RandomState::new().hash_one(0).to_le_bytes();
    u32::from_le_bytes([a, b, c, d])
}
