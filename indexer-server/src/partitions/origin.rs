use std::time::Duration;
use tokio::time::Instant;

/// Where the server's time begins. The index gets times as durations since then.
#[derive(Debug, Clone, Copy)]
pub struct Origin(Instant);

impl Origin {
    /// Time begins now.
    #[must_use]
    pub fn now() -> Self {
        Self(Instant::now())
    }

    /// Time since the origin.
    #[must_use]
    pub fn elapsed(self) -> Duration {
        self.0.elapsed()
    }

    /// A moment as a time since the origin.
    #[must_use]
    pub fn since(self, moment: Instant) -> Duration {
        moment.saturating_duration_since(self.0)
    }
}
