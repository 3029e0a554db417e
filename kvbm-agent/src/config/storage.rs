//! Options of storage events.

use crate::storage::{STORAGE_INTERVAL_DEFAULT, StorageConfig};
use clap::{ArgAction, Args};
use kvasir_process::config::ConfigError;
use kvasir_process::options::positive;
use kvasir_process::text::{ServerUrl, Span};
use kvasir_proto::convert::check_location;
use kvasir_proto::limits::STORAGE_LOCATION_BYTES_MAX;
use serde::Serialize;
use std::time::Duration;

/// Maximum interval. A change reaches subscribers after up to this time.
const INTERVAL_MAX: Duration = Duration::from_secs(60);
/// Prefix of a volume's location.
const VOLUME: &str = "volume:";

/// Options of storage events.
#[derive(Debug, Clone, PartialEq, Eq, Args, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct StorageOptions {
    /// Publish storage events over NATS, for storage providers. An event states that a tier stored or removed a block.
    /// Requires --blocks-host-bytes
    #[arg(long, action = ArgAction::Set, num_args = 0..=1, default_missing_value = "true", value_name = "BOOL", default_value_t = false)]
    pub storage_events: bool,
    /// Time between two publications of storage events, at most 60s. The agent publishes earlier once 2048 events wait
    #[arg(long, value_name = "TIME", default_value_t = Span(STORAGE_INTERVAL_DEFAULT))]
    pub storage_batch_interval: Span,
    /// Name of --blocks-volume in index and storage events, at most 57 bytes. Use the same name for all agents that
    /// share the volume. If not set: the index uses the URL
    #[arg(long, value_name = "NAME")]
    pub storage_volume_name: Option<String>,
}

impl StorageOptions {
    /// Checks the options. Returns `None` if storage events are off.
    ///
    /// # Errors
    /// If an option cannot be used. The error names it.
    pub(super) fn check(
        &self,
        volume: Option<&ServerUrl>,
    ) -> Result<Option<StorageConfig>, ConfigError> {
        let interval = positive("storage-batch-interval", self.storage_batch_interval)?;
        if interval > INTERVAL_MAX {
            let given = self.storage_batch_interval;
            let limit = Span(INTERVAL_MAX);
            let why = format!("is {given}, must be {limit} or less");
            return Err(ConfigError::invalid("storage-batch-interval", why));
        }
        let volume_name = self.storage_volume_name.clone();
        if let Some(name) = &volume_name {
            const FIELD: &str = "storage-volume-name";
            if volume.is_none() {
                let why = "needs blocks-volume";
                return Err(ConfigError::invalid(FIELD, why));
            }
            if name.is_empty() || check_location(FIELD, &format!("{VOLUME}{name}")).is_err() {
                let limit = STORAGE_LOCATION_BYTES_MAX - VOLUME.len();
                let why =
                    format!("must have 1 to {limit} bytes, and no character that is not shown");
                return Err(ConfigError::invalid(FIELD, why));
            }
        }
        Ok(self.storage_events.then_some(StorageConfig { interval, volume_name }))
    }
}
