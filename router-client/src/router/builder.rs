use super::Router;
use super::config::{RouterConfig, RouterWorker};
use super::index::Index;
use crate::route::{ConfigError, Mode, QueueConfig};
use std::num::NonZeroU32;
use std::time::Duration;

/// Builds a [`Router`]. Settings without a method here are in [`RouterBuilder::config`].
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

    /// The index that reports overlap; [`Index::None`] by default.
    #[must_use]
    pub fn index(mut self, index: Index) -> Self {
        self.index = index;
        self
    }

    /// How the router chooses workers.
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

    /// When requests wait in the queue.
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

    /// Adds initial workers.
    #[must_use]
    pub fn workers(mut self, workers: impl IntoIterator<Item = RouterWorker>) -> Self {
        self.workers.extend(workers);
        self
    }

    /// All settings, mutable.
    #[must_use]
    pub const fn config(&mut self) -> &mut RouterConfig {
        &mut self.config
    }

    /// Creates the router.
    ///
    /// # Errors
    /// If a setting is invalid.
    pub fn build(self) -> Result<Router, ConfigError> {
        let router = Router::new(self.config, self.index)?;
        router.set_workers(self.workers);
        Ok(router)
    }
}
