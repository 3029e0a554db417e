use std::time::Duration;
use tokio::time::Instant;

/// Time between two log lines of one kind.
const LOG_INTERVAL: Duration = Duration::from_secs(10);

/// Keeps a peer from filling the log.
#[derive(Debug, Default)]
pub(super) struct Throttle {
    logged_at: Option<Instant>,
    suppressed: u64,
}

impl Throttle {
    /// Whether to log now, and how many lines were left out since the last one.
    pub(super) fn admit(&mut self) -> Option<u64> {
        let now = Instant::now();
        if self.logged_at.is_some_and(|logged_at| now < logged_at + LOG_INTERVAL) {
            self.suppressed += 1;
            return None;
        }
        self.logged_at = Some(now);
        Some(std::mem::take(&mut self.suppressed))
    }
}
