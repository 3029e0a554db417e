//! The router as a library: from a prompt to a worker, and from a request to the load that it makes.
//!
//! [`Router`] asks the index how much of a prompt each worker holds, adds what it knows of the requests under way, and
//! chooses by the pure cores in [`route`](crate::route). The [`Reservation`] that it returns counts as load until it is
//! dropped: a gateway that loses a client, or panics, frees the worker.
//!
//! If the index does not answer in time, the router decides by load alone, and the reservation says so.

mod config;
mod index;
mod reservation;
mod state;

pub use config::{Hints, RouterConfig, RouterWorker};
pub use index::{Index, IndexUse};
pub use reservation::Reservation;

use crate::prompt::Prompt;
use crate::route::{BusyThresholds, ConfigError, Question, RankLoad, SelectError};
use kvasir_proto::hash::sequence_hashes;
use kvasir_proto::types::{SequenceHash, WorkerKey};
use state::Shared;
use std::sync::Arc;

/// Why no worker is chosen.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum RouteError {
    /// A setting, or what the request sets itself, cannot be used.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// No worker may have the request, or all are busy.
    #[error(transparent)]
    Select(#[from] SelectError),
}

/// Chooses workers of one model and tenant. Cheap to clone: clones share loads and settings.
#[derive(Debug, Clone)]
pub struct Router {
    shared: Arc<Shared>,
}

impl Router {
    /// A router without workers yet. `index` answers for overlap; with [`Index::None`] load alone decides.
    ///
    /// # Errors
    /// If a setting cannot be used.
    pub fn new(config: RouterConfig, index: Index) -> Result<Self, ConfigError> {
        config.check()?;
        Ok(Self { shared: Arc::new(Shared::new(config, index)) })
    }

    /// These are the workers from now on, each rank by itself. A rank that is not among them is forgotten with its
    /// requests; one that was there before keeps its load.
    pub fn set_workers(&self, workers: impl IntoIterator<Item = RouterWorker>) {
        // The caller's code runs before the lock is taken.
        let workers = workers.into_iter().collect();
        let now = self.shared.now();
        self.shared.state().set_workers(workers, now);
    }

    /// Changes from now on which ranks are too busy to get a request.
    ///
    /// # Errors
    /// If a threshold is out of its bounds; then nothing changes.
    pub fn set_busy_thresholds(&self, busy: BusyThresholds) -> Result<(), ConfigError> {
        self.shared.state().set_busy(busy)
    }

    /// Chooses a worker for a prompt, and counts the request as its load until the reservation is dropped. Waits for the
    /// index for its client's deadline at most.
    ///
    /// # Errors
    /// If no worker may have the request, all are busy, or a hint or the prompt's block size cannot be used.
    pub async fn select(
        &self,
        prompt: &Prompt<'_>,
        hints: &Hints<'_>,
    ) -> Result<Reservation, RouteError> {
        let question = self.question(prompt, hints);
        question.check()?;
        if prompt.block_size != question.block_size.get() {
            let (setting, problem) = ("block size of the prompt", "must be the router's");
            return Err(ConfigError { setting, problem }.into());
        }
        let needs_overlap = self.shared.state().selector().needs_overlap(&question);
        let overlaps = match needs_overlap {
            true => self.shared.index().overlaps(prompt).await,
            false => index::Overlaps::not_needed(),
        };
        let locals = prompt.local_hashes();
        let chain: Vec<SequenceHash> = sequence_hashes(&locals).collect();
        let (key, decision) = self.shared.place(&question, &chain, &overlaps, hints)?;
        Ok(Reservation::new(Arc::clone(&self.shared), key, decision, overlaps.index_use))
    }

    /// The load of each rank by the requests under way, in order of worker and rank.
    #[must_use]
    pub fn loads(&self) -> Vec<(WorkerKey, RankLoad)> {
        self.shared.state().loads()
    }

    fn question<'a>(&self, prompt: &Prompt<'_>, hints: &Hints<'a>) -> Question<'a> {
        let tokens = prompt.tokens.len() as u64;
        Question {
            mode: hints.mode,
            overlap_score_weight: hints.overlap_score_weight,
            temperature: hints.temperature,
            constraints: hints.constraints,
            preferences: hints.preferences,
            explain: hints.explain,
            ..Question::new(tokens, self.shared.block_size())
        }
    }
}

#[cfg(test)]
mod router_test;
