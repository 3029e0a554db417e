//! Exponential backoff with jitter between attempts to reach a peer, so that a fleet does not reconnect at the same
//! time. It also limits how often the log reports that the peer is away.

use kvasir_engine::throttle::Throttle;
use kvasir_engine::zmtp::Backoff;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::time::Duration;
use tokio::select;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

/// First backoff delay.
const PAUSE_MIN: Duration = Duration::from_millis(100);
/// Maximum backoff delay.
const PAUSE_MAX: Duration = Duration::from_secs(5);
/// Time between two log lines about a peer that stays away.
const LOG_INTERVAL: Duration = Duration::from_secs(60);

/// Backoff and log limiter for one peer.
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
    /// Whether to log that the peer is away. Returns how many attempts were not logged since the last line.
    pub fn admit_line(&mut self) -> Option<u64> {
        self.log.admit(Instant::now())
    }

    /// Resets backoff and log limiter after an answer of the peer: the next failure is logged immediately.
    pub fn reset(&mut self) {
        self.log.reset();
        self.backoff.reset();
    }

    /// Waits for the backoff delay. Returns false immediately when `stop` is cancelled.
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
