use crate::load::LoadError;
use kvasir_engine::scrape::{ScrapedEngine, Target};
use std::time::Duration;

/// Least interval and timeout that may be configured.
const TIME_MIN: Duration = Duration::from_millis(10);

/// An engine's metrics, and how they are read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScrapeConfig {
    /// `http://host:port`, with a path unless that is `/metrics`.
    pub url: String,
    /// Whose metrics they are.
    pub engine: ScrapedEngine,
    /// How often they are fetched, at least 10 ms.
    pub interval: Duration,
    /// How long that may take, at least 10 ms.
    pub timeout: Duration,
    /// Most bytes of an answer's body; more is a failure.
    pub body_bytes_max: usize,
}

impl ScrapeConfig {
    /// Fetches every second, within a second, up to 8 MiB.
    #[must_use]
    pub fn new(url: impl Into<String>, engine: ScrapedEngine) -> Self {
        let interval = Duration::from_secs(1);
        let timeout = Duration::from_secs(1);
        Self { url: url.into(), engine, interval, timeout, body_bytes_max: 8 << 20 }
    }

    /// # Errors
    /// If a time is too short, or the URL is none that metrics can be read from.
    pub fn check(&self) -> Result<(), LoadError> {
        self.target().map(drop)
    }

    /// Where the metrics are.
    pub(super) fn target(&self) -> Result<Target, LoadError> {
        let times = [("scrape.interval", self.interval), ("scrape.timeout", self.timeout)];
        for (field, actual) in times {
            if actual < TIME_MIN {
                return Err(LoadError::TooShort { field, actual, min: TIME_MIN });
            }
        }
        Ok(Target::parse(&self.url)?)
    }
}
