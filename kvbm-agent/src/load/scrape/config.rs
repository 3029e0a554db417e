use crate::load::LoadError;
use kvasir_engine::scrape::{ScrapedEngine, Target};
use std::time::Duration;

/// Lower limit of interval and timeout.
const TIME_MIN: Duration = Duration::from_millis(10);

/// Endpoint of an engine's metrics, and how to read it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScrapeConfig {
    /// URL `http://host:port`, with a path unless that is `/metrics`.
    pub url: String,
    /// Engine whose metrics are read.
    pub engine: ScrapedEngine,
    /// Time between two reads, at least 10 ms.
    pub interval: Duration,
    /// Timeout of one read, at least 10 ms.
    pub timeout: Duration,
    /// Maximum size of an answer's body in bytes. A longer body is a failure.
    pub body_bytes_max: usize,
}

impl ScrapeConfig {
    /// Reads every second, with a timeout of one second, up to 8 MiB.
    #[must_use]
    pub fn new(url: impl Into<String>, engine: ScrapedEngine) -> Self {
        let interval = Duration::from_secs(1);
        let timeout = Duration::from_secs(1);
        Self { url: url.into(), engine, interval, timeout, body_bytes_max: 8 << 20 }
    }

    /// # Errors
    /// If a time is too short, or the URL cannot be used for metrics.
    pub fn check(&self) -> Result<(), LoadError> {
        self.target().map(drop)
    }

    /// Returns the address to request. Fails if a time is too short or the URL is invalid.
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
