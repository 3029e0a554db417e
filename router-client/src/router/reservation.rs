use super::index::IndexUse;
use super::state::Shared;
use crate::route::{Decision, RequestKey};
use kvasir_proto::types::WorkerKey;
use std::sync::Arc;

/// A request under way at the worker that was chosen for it. Dropping it frees the worker.
#[derive(Debug)]
#[must_use = "dropping it frees the worker"]
pub struct Reservation {
    shared: Arc<Shared>,
    key: RequestKey,
    decision: Decision,
    index_use: IndexUse,
}

impl Reservation {
    pub(super) fn new(
        shared: Arc<Shared>,
        key: RequestKey,
        decision: Decision,
        index_use: IndexUse,
    ) -> Self {
        Self { shared, key, decision, index_use }
    }

    /// The rank to send the request to.
    #[must_use]
    pub const fn worker(&self) -> &WorkerKey {
        &self.decision.worker
    }

    /// How it was chosen, and why.
    #[must_use]
    pub const fn decision(&self) -> &Decision {
        &self.decision
    }

    /// What the index contributed.
    #[must_use]
    pub const fn index_use(&self) -> &IndexUse {
        &self.index_use
    }

    /// The first token is out: the prompt's tokens count as load no more, its blocks do.
    pub fn first_token(&self) {
        let now = self.shared.now();
        self.shared.state().active().mark_prefill_completed(&self.key, now);
    }

    /// So many tokens of output in all so far.
    pub fn output_tokens(&self, tokens: u64) {
        let now = self.shared.now();
        self.shared.state().active().report_output(&self.key, tokens, now);
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.shared.state().active().free(&self.key);
    }
}
