//! Disaggregated serving: prefill workers, which only compute prompts, and decode workers, which generate.

use super::Router;
use super::config::{Filter, Hints, RouterConfig, RouterWorker};
use super::error::RouteError;
use super::index::{Index, Overlaps};
use super::outcome::{Choice, Ended, Freed};
use super::reservation::Reservation;
use super::state::{Part, Pending};
use crate::prompt::HashedPrompt;
use crate::route::{ActiveConfig, ConfigError, Mode, SelectError, Update};
use kvasir_proto::convert::Role;
use std::sync::Arc;
use std::time::Duration;

/// When a prefill worker computes a prompt, and which decode workers it can be paired with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PoolsConfig {
    /// If fewer tokens than this remain to compute, the decode worker computes the prompt itself: a transfer would cost
    /// more than it saves.
    pub remote_prefill_tokens_min: u64,
    /// Label with a worker's transfer domain. A prefill worker is paired only with decode workers of its domain. A
    /// prefill worker without the label is paired with any.
    pub transfer_domain_label: String,
}

/// The workers of a model and tenant in two pools: prefill workers, and all others (the main pool). Cheap to clone.
///
/// Document 004: a prompt goes to a prefill worker first, which returns the parameters for the transfer of its blocks.
/// With these, the request goes to the decode worker. Without prefill workers, or if prefill fails, the decode worker
/// does both. The prefill pool never tracks active blocks, because its workers generate no tokens.
#[derive(Debug, Clone)]
pub struct Pools {
    main: Router,
    prefill: Router,
    config: Arc<PoolsConfig>,
}

/// Why a request has or lacks a prefill worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PrefillOutcome {
    /// The caller requested no prefill worker.
    NotAsked,
    /// A prefill worker was chosen.
    Chosen,
    /// No prefill worker exists or may receive the request.
    NoWorker,
    /// Too few tokens remain to compute for a transfer to pay: the prompt is short, or mostly cached.
    MostlyCached,
    /// All prefill workers are busy.
    Busy,
    /// No decode worker in the prefill worker's transfer domain can accept the request.
    NoDomain,
}

/// An active request at its decode worker and, if it has one, at its prefill worker. Dropping the placement frees both.
#[derive(Debug)]
#[must_use = "dropping it frees the workers"]
pub struct Placement {
    /// Reservation at the decode worker.
    pub decode: Reservation,
    /// Reservation at the prefill worker. `None` if the decode worker computes the prompt, or after the prefill worker
    /// has finished.
    pub prefill: Option<Reservation>,
    /// Why the request has or lacks a prefill worker.
    pub prefill_outcome: PrefillOutcome,
}

/// A [`Placement`] that is tracked by its request id instead of by dropping it.
#[derive(Debug)]
pub struct Detached {
    /// Id of the request, in both pools.
    pub request_id: String,
    /// Choice of the decode worker.
    pub decode: Choice,
    /// Choice of the prefill worker.
    pub prefill: Option<Choice>,
    /// Why the request has or lacks a prefill worker.
    pub prefill_outcome: PrefillOutcome,
}

// === impl PoolsConfig ===

impl Default for PoolsConfig {
    fn default() -> Self {
        // The documents define neither value.
        Self { remote_prefill_tokens_min: 512, transfer_domain_label: "transfer-domain".to_owned() }
    }
}

// === impl Pools ===

impl Pools {
    /// Creates two pools without workers. `config` is for the main pool; the prefill pool uses it without tracking
    /// blocks.
    ///
    /// # Errors
    /// If a setting is invalid.
    pub fn new(
        config: RouterConfig,
        pools: PoolsConfig,
        index: Index,
    ) -> Result<Self, ConfigError> {
        let main = Router::new(config, index.clone())?;
        let mut of_prefill = config;
        of_prefill.active.blocks = ActiveConfig::prefill_pool(config.active.block_size).blocks;
        let prefill = Router::new(of_prefill, index)?;
        Ok(Self { main, prefill, config: Arc::new(pools) })
    }

    /// The main pool: decode workers, and workers that do both.
    #[must_use]
    pub const fn main(&self) -> &Router {
        &self.main
    }

    /// The prefill pool.
    #[must_use]
    pub const fn prefill(&self) -> &Router {
        &self.prefill
    }

    /// Replaces the workers. Each goes to its pool by its role.
    pub fn set_workers(&self, workers: impl IntoIterator<Item = RouterWorker>) {
        let is_prefill = |at: &RouterWorker| at.profile.role == Role::Prefill;
        let (prefill, main): (Vec<_>, Vec<_>) = workers.into_iter().partition(is_prefill);
        self.main.set_workers(main);
        self.prefill.set_workers(prefill);
    }

    /// Chooses a decode worker and, if one is available and a transfer pays, a prefill worker.
    ///
    /// # Errors
    /// As for [`Router::select`]. If no prefill worker can be chosen, the request proceeds without one.
    pub async fn select(
        &self,
        prompt: &HashedPrompt,
        hints: &Hints,
    ) -> Result<Placement, RouteError> {
        let chain = prompt.sequence_hashes();
        let asked = self.main.pending(prompt, &chain, hints, Part::Whole)?;
        let mode = hints.mode.unwrap_or(self.main.config().select.mode);
        if mode == Mode::Direct || !self.prefill.has_workers() {
            return self.local(asked, None, PrefillOutcome::NoWorker).await;
        }
        if prompt.input_tokens < self.config.remote_prefill_tokens_min {
            return self.local(asked, None, PrefillOutcome::MostlyCached).await;
        }
        // One answer of the index serves all decisions. No decision that uses it waits, so it does not go out of date.
        let overlaps = self.main.overlaps(&asked).await;
        if self.is_mostly_cached(&asked, &overlaps) {
            return self.local(asked, Some(overlaps), PrefillOutcome::MostlyCached).await;
        }
        // Both pools use one id for the request.
        let request_id = hints.request_id.clone().unwrap_or_else(|| self.main.new_request_id());
        let prefill = match self.place_prefill(&asked, &request_id, &overlaps) {
            Ok(prefill) => prefill,
            Err(error) => {
                let outcome = outcome(&error).ok_or(error)?;
                return self.local(asked, Some(overlaps), outcome).await;
            }
        };
        let domain = self.prefill.label(prefill.worker(), &self.config.transfer_domain_label);
        let has_domain = domain.is_some();
        match self.select_decode(&asked, request_id, domain).await {
            Ok(decode) => {
                let prefill = Some(prefill.complete_choice(overlaps.index_use, None));
                let prefill_outcome = PrefillOutcome::Chosen;
                Ok(Placement { decode, prefill, prefill_outcome })
            }
            // Workers outside the domain may have room.
            Err(error) if has_domain && outcome(&error).is_some() => {
                drop(prefill);
                self.local(asked, Some(overlaps), PrefillOutcome::NoDomain).await
            }
            Err(error) => Err(error),
        }
    }

    /// Places the prefill part of a request at a worker of the prefill pool. Fails instead of waiting.
    fn place_prefill(
        &self,
        asked: &Pending<'_>,
        request_id: &str,
        overlaps: &Overlaps,
    ) -> Result<Reservation, RouteError> {
        let Pending { prompt, hints, chain, .. } = asked;
        let filter =
            Filter { pin: None, roles: Vec::new(), model_type: None, ..hints.filter.clone() };
        let wanted = Hints {
            filter,
            request_id: Some(request_id.to_owned()),
            expected_output_tokens: None,
            // If no prefill worker is free, the request proceeds without one instead of waiting.
            queue_timeout: Some(Duration::ZERO),
            ..(*hints).clone()
        };
        let pending = self.prefill.pending(prompt, chain, &wanted, Part::Prefill)?;
        self.prefill.place_now(&pending, overlaps)
    }

    /// Chooses a worker of the main pool for the decode part of a request: in the transfer domain `domain`, if it is
    /// given.
    async fn select_decode(
        &self,
        asked: &Pending<'_>,
        request_id: String,
        domain: Option<String>,
    ) -> Result<Reservation, RouteError> {
        let Pending { prompt, hints, chain, .. } = asked;
        let mut wanted = Hints {
            request_id: Some(request_id),
            // The transfer brings the blocks, wherever they are cached, so load alone decides.
            overlap_score_weight: Some(0.0),
            ..(*hints).clone()
        };
        if let Some(domain) = domain {
            wanted.filter.labels.push((self.config.transfer_domain_label.clone(), domain));
            wanted.queue_timeout = Some(Duration::ZERO);
        }
        let pending = self.main.pending(prompt, chain, &wanted, Part::Decode)?;
        Box::pin(self.main.select_pending(pending, None)).await
    }

    /// Chooses a worker that does prefill and decode, for example after a failed prefill.
    ///
    /// # Errors
    /// As for [`Router::select`].
    pub async fn select_local(
        &self,
        prompt: &HashedPrompt,
        hints: &Hints,
    ) -> Result<Placement, RouteError> {
        let chain = prompt.sequence_hashes();
        let asked = self.main.pending(prompt, &chain, hints, Part::Whole)?;
        self.local(asked, None, PrefillOutcome::NotAsked).await
    }

    /// Chooses a worker of the main pool for prefill and decode together.
    async fn local(
        &self,
        asked: Pending<'_>,
        known: Option<Overlaps>,
        prefill_outcome: PrefillOutcome,
    ) -> Result<Placement, RouteError> {
        let decode = Box::pin(self.main.select_pending(asked, known)).await?;
        Ok(Placement { decode, prefill: None, prefill_outcome })
    }

    /// Reports the first token of a detached request, which ends its load at the prefill worker.
    ///
    /// # Errors
    /// If the id is invalid.
    pub fn mark_prefill_completed(&self, request_id: &str) -> Result<Update, ConfigError> {
        self.report(request_id, |router| router.mark_prefill_completed(request_id))
    }

    /// Reports the total number of output tokens of a detached request so far. With 0 tokens, only renews its leases.
    /// Otherwise the load at the prefill worker ends.
    ///
    /// # Errors
    /// If the id is invalid.
    pub fn report_output(&self, request_id: &str, tokens: u64) -> Result<Update, ConfigError> {
        if tokens == 0 {
            // A report without tokens renews the lease.
            let update = self.main.report_output(request_id, 0)?;
            let prefill = self.prefill.report_output(request_id, 0)?;
            return Ok(if update == Update::Unknown { prefill } else { update });
        }
        self.report(request_id, |router| router.report_output(request_id, tokens))
    }

    /// Ends a detached request. Returns `None` if there is no active request with this id.
    ///
    /// # Errors
    /// If the id is invalid.
    pub fn free(
        &self,
        request_id: &str,
        ended: Ended,
        has_prefill_failed: Option<bool>,
    ) -> Result<Option<Freed>, ConfigError> {
        let freed = self.main.free(request_id, ended)?;
        let of_pair = Ended { has_failed: has_prefill_failed, cached_tokens: None };
        // The main worker may have been removed, which is not a failure of the prefill worker.
        if freed.is_none() && !self.prefill.is_paired(request_id)? {
            return self.prefill.free(request_id, ended);
        }
        let prefill = self.prefill.free(request_id, of_pair)?;
        Ok(freed.or(prefill))
    }

    /// Whether either pool has a request with this id.
    #[must_use]
    pub fn has_request(&self, request_id: &str) -> bool {
        self.main.has_request(request_id) || self.prefill.has_request(request_id)
    }

    /// Applies a report to a request at its main worker, and ends its load at the prefill worker. A request that has
    /// only a prefill worker gets the report there.
    fn report(
        &self,
        request_id: &str,
        report: impl Fn(&Router) -> Result<Update, ConfigError>,
    ) -> Result<Update, ConfigError> {
        let update = report(&self.main)?;
        if update == Update::Unknown && !self.prefill.is_paired(request_id)? {
            return report(&self.prefill);
        }
        self.prefill.free(request_id, Ended { has_failed: Some(false), cached_tokens: None })?;
        Ok(update)
    }

    /// Whether the decode worker should compute the rest of a prompt itself.
    fn is_mostly_cached(&self, asked: &Pending<'_>, overlaps: &Overlaps) -> bool {
        let least = self.config.remote_prefill_tokens_min as f64;
        // An error here occurs again when the request is placed.
        let local = self.main.preview(asked, overlaps);
        local.is_ok_and(|local| local.cost.new_prefill_tokens < least)
    }
}

/// Converts an error of the prefill pool into an outcome, if the request can proceed at one worker. Returns `None` for
/// an invalid request.
fn outcome(error: &RouteError) -> Option<PrefillOutcome> {
    match error {
        RouteError::Select(SelectError::AllBusy { .. })
        | RouteError::QueueFull
        | RouteError::QueueTimeout(_) => Some(PrefillOutcome::Busy),
        RouteError::Select(
            SelectError::NoWorkers
            | SelectError::NoneAllowed { .. }
            | SelectError::NoTarget
            | SelectError::UnknownTarget,
        ) => Some(PrefillOutcome::NoWorker),
        RouteError::Config(_) | RouteError::DuplicateId => None,
    }
}

// === impl Placement ===

impl Placement {
    /// Ends the load at the prefill worker.
    pub fn prefill_done(&mut self) {
        if let Some(prefill) = self.prefill.take() {
            let _freed = prefill.end(Ended { has_failed: Some(false), cached_tokens: None });
        }
    }

    /// Reports that the prefill worker failed the request; too many failures eject it for a while. Then drop the
    /// placement and continue with [`Pools::select_local`].
    pub fn prefill_failed(&mut self) {
        if let Some(prefill) = self.prefill.take() {
            prefill.failed();
        }
    }

    /// Reports the first token, which also ends the load at the prefill worker.
    pub fn first_token(&mut self) {
        self.prefill_done();
        self.decode.first_token();
    }

    /// Reports the total number of output tokens so far. The first token ends the prefill worker's load.
    pub fn output_tokens(&mut self, tokens: u64) {
        if tokens > 0 {
            self.prefill_done();
        }
        self.decode.output_tokens(tokens);
    }

    /// Renews the request's lease at both workers.
    pub fn is_alive(&self) {
        if let Some(prefill) = &self.prefill {
            prefill.output_tokens(0);
        }
        self.decode.output_tokens(0);
    }

    /// Detaches the request: from now on it is tracked by its id.
    #[must_use]
    pub fn detach(self) -> Detached {
        let (request_id, decode) = self.decode.detach();
        let prefill = self.prefill.map(|prefill| prefill.detach().1);
        Detached { request_id, decode, prefill, prefill_outcome: self.prefill_outcome }
    }
}
