use crate::route::{ActiveConfig, ConfigError, Constraints, Mode, Preferences, SelectConfig};
use kvasir_proto::convert::WorkerProfile;
use kvasir_proto::types::WorkerKey;
use std::collections::BTreeSet;
use std::num::NonZeroU32;

/// Settings of a [`Router`](super::Router). The defaults are those of the documents.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RouterConfig {
    /// How workers are chosen.
    pub select: SelectConfig,
    /// What of the requests under way is tracked. The lease has no effect here: a reservation counts until it is dropped.
    pub active: ActiveConfig,
}

/// A rank that can be chosen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RouterWorker {
    /// The rank.
    pub key: WorkerKey,
    /// What its worker states about itself.
    pub profile: WorkerProfile,
    /// LoRA adapters that it has loaded.
    pub adapters: BTreeSet<String>,
}

/// What a request sets itself. The default sets nothing.
#[derive(Debug, Clone, Copy, Default)]
pub struct Hints<'a> {
    /// Its mode.
    pub mode: Option<Mode>,
    /// Its weight of overlap against load.
    pub overlap_score_weight: Option<f64>,
    /// Its temperature.
    pub temperature: Option<f64>,
    /// What its worker must be.
    pub constraints: Constraints<'a>,
    /// What its worker had better be.
    pub preferences: Preferences<'a>,
    /// Tokens of output that the client expects.
    pub expected_output_tokens: Option<u64>,
    /// Whether the decision lists what was known of each rank.
    pub explain: bool,
}

impl RouterConfig {
    /// The defaults, for a fleet with so many tokens a block.
    #[must_use]
    pub fn new(block_size: NonZeroU32) -> Self {
        Self { select: SelectConfig::default(), active: ActiveConfig::new(block_size) }
    }

    /// Whether all settings can be used.
    ///
    /// # Errors
    /// If one is out of its bounds.
    pub fn check(&self) -> Result<(), ConfigError> {
        self.select.check()?;
        self.active.check()
    }
}

impl RouterWorker {
    /// A rank of which nothing else is known.
    #[must_use]
    pub fn new(key: WorkerKey) -> Self {
        Self { key, profile: WorkerProfile::default(), adapters: BTreeSet::new() }
    }
}
