//! Pauses between attempts to reach a peer: they double, and differ between processes, so that a fleet does not
//! return in step. They also limit how often the log reports that the peer is away.

use kvasir_engine::throttle::Throttle;
use kvasir_engine::zmtp::Backoff;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::time::Duration;
use tokio::select;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

/// First pause.
const PAUSE_MIN: Duration = Duration::from_millis(100);
/// Longest pause.
const PAUSE_MAX: Duration = Duration::from_secs(5);
/// Time between two log lines of a peer that stays away.
const LOG_INTERVAL: Duration = Duration::from_secs(60);

/// The pauses between attempts to reach one peer.
#[derive(Debug)]
pub struct Pauses {
    backoff: Backoff,
    log: Throttle,
}

impl Default for Pauses {
    fn default() -> Self {
        let backoff = Backoff::new(PAUSE_MIN, PAUSE_MAX);
        Self { backoff, log: Throttle::every(LOG_INTERVAL) }
    }
}

impl Pauses {
    /// Whether to log that the peer is away, and how many attempts were not logged since the last line.
    pub fn admit_line(&mut self) -> Option<u64> {
        self.log.admit(Instant::now())
    }

    /// The peer answered: its next failure is logged at once, and the next pause is short again.
    pub fn reset(&mut self) {
        self.log.reset();
        self.backoff.reset();
    }

    /// Waits; returns false at once when `stop` is cancelled.
    pub async fn wait(&mut self, stop: &CancellationToken) -> bool {
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
