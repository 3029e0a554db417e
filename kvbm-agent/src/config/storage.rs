//! Settings of storage events.

use crate::storage::{STORAGE_INTERVAL_DEFAULT, StorageConfig};
use kvasir_process::config::ConfigError;
use kvasir_process::options::positive;
use kvasir_process::text::{Setting, Settings, Span};
use std::time::Duration;

const FIELD: &str = "storage-events interval";
/// Maximum interval. A change reaches subscribers after up to this time.
const INTERVAL_MAX: Duration = Duration::from_secs(60);

/// Whether storage events are published, and how often.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StorageSettings {
    /// Whether storage events are published.
    pub enabled: bool,
    /// Time between two publications.
    pub interval: Span,
}

impl Default for StorageSettings {
    fn default() -> Self {
        Self { enabled: false, interval: Span(STORAGE_INTERVAL_DEFAULT) }
    }
}

impl Settings for StorageSettings {
    const PLAIN_KEY: Option<&'static str> = Some("enabled");

    fn settings(&mut self) -> Vec<(&'static str, &mut dyn Setting)> {
        vec![("enabled", &mut self.enabled), ("interval", &mut self.interval)]
    }
}

impl StorageSettings {
    /// Checks the settings. Returns `None` if storage events are off.
    ///
    /// # Errors
    /// If a setting cannot be used. The error names it.
    pub(super) fn check(
        &self,
        volume_name: Option<String>,
    ) -> Result<Option<StorageConfig>, ConfigError> {
        let interval = positive(FIELD, self.interval)?;
        if interval > INTERVAL_MAX {
            let limit = Span(INTERVAL_MAX);
            let why = format!("is {}, must be {limit} or less", self.interval);
            return Err(ConfigError::invalid(FIELD, why));
        }
        Ok(self.enabled.then_some(StorageConfig { interval, volume_name }))
    }
}
