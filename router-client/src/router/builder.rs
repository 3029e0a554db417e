use super::Router;
use super::config::{RouterConfig, RouterWorker};
use super::index::Index;
use crate::route::{ConfigError, Mode, QueueConfig};
use std::num::NonZeroU32;
use std::time::Duration;

/// Builds a [`Router`]. What is not named here is in [`RouterBuilder::config`].
#[derive(Debug)]
pub struct RouterBuilder {
    config: RouterConfig,
    index: Index,
    workers: Vec<RouterWorker>,
}

impl RouterBuilder {
    pub(super) fn new(block_size: NonZeroU32) -> Self {
        Self { config: RouterConfig::new(block_size), index: Index::None, workers: Vec::new() }
    }

    /// Who answers for overlap; by default nobody.
    #[must_use]
    pub fn index(mut self, index: Index) -> Self {
        self.index = index;
        self
    }

    /// How workers are chosen.
    #[must_use]
    pub const fn mode(mut self, mode: Mode) -> Self {
        self.config.select.mode = mode;
        self
    }

    /// Weight of overlap against load.
    #[must_use]
    pub const fn overlap_score_weight(mut self, weight: f64) -> Self {
        self.config.select.cost.overlap_score_weight = weight;
        self
    }

    /// When requests wait.
    #[must_use]
    pub const fn queue(mut self, queue: QueueConfig) -> Self {
        self.config.queue = queue;
        self
    }

    /// How long a session prefers the rank that served it last.
    #[must_use]
    pub const fn session_ttl(mut self, ttl: Duration) -> Self {
        self.config.session_ttl = Some(ttl);
        self
    }

    /// The workers at the start.
    #[must_use]
    pub fn workers(mut self, workers: impl IntoIterator<Item = RouterWorker>) -> Self {
        self.workers.extend(workers);
        self
    }

    /// All settings.
    #[must_use]
    pub const fn config(&mut self) -> &mut RouterConfig {
        &mut self.config
    }

    /// The router.
    ///
    /// # Errors
    /// If a setting cannot be used.
    pub fn build(self) -> Result<Router, ConfigError> {
        let router = Router::new(self.config, self.index)?;
        router.set_workers(self.workers);
        Ok(router)
    }
}
