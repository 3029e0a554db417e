use std::time::Duration;
use tokio::time::Instant;

/// Start of the server's clock. The index receives times as durations since this moment.
#[derive(Debug, Clone, Copy)]
pub struct Origin(Instant);

impl Origin {
    /// Starts the clock now.
    #[must_use]
    pub fn now() -> Self {
        Self(Instant::now())
    }

    /// Time since the origin.
    #[must_use]
    pub fn elapsed(self) -> Duration {
        self.0.elapsed()
    }

    /// Converts a moment to the time since the origin.
    #[must_use]
    pub fn since(self, moment: Instant) -> Duration {
        moment.saturating_duration_since(self.0)
    }
}
