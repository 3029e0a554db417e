//! Disaggregated serving: prefill workers, which compute prompts only, beside decode workers, which generate.

use super::config::{Filter, Hints};
use super::error::RouteError;
use super::outcome::{Choice, Ended, Freed};
use super::reservation::Reservation;
use super::state::Part;
use super::{Router, RouterConfig};
use crate::prompt::HashedPrompt;
use crate::route::{ActiveConfig, ConfigError, Mode, SelectError, Update};
use crate::router::{Index, RouterWorker};
use kvasir_proto::convert::Role;
use std::sync::Arc;
use std::time::Duration;

/// When a prompt is computed elsewhere, and where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PoolsConfig {
    /// The decode worker computes prompts with fewer tokens left to compute than this: a transfer would cost more than it
    /// saves.
    pub remote_prefill_tokens_min: u64,
    /// Label that names a worker's transfer domain. A prefill worker is paired with decode workers of its own domain only;
    /// one without the label is paired with any.
    pub transfer_domain_label: String,
}

/// The workers of a model and tenant: those for prefill only, and all others. Cheap to clone.
///
/// Document 004: a prompt goes to a prefill worker first, which returns what is needed to transfer its blocks; with that
/// it goes to the decode worker. Without prefill workers, or if prefill fails, the decode worker does both. The prefill
/// pool never tracks active blocks, as nothing is generated there.
#[derive(Debug, Clone)]
pub struct Pools {
    main: Router,
    prefill: Router,
    config: Arc<PoolsConfig>,
}

/// Why a request has a prefill worker, or none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PrefillOutcome {
    /// The caller wanted none.
    NotAsked,
    /// It has one.
    Chosen,
    /// No prefill worker is there, or none may have the request.
    NoWorker,
    /// Too few tokens are left to compute for a transfer to pay: the prompt is short, or mostly cached.
    MostlyCached,
    /// All prefill workers are busy.
    Busy,
    /// No decode worker in the prefill worker's transfer domain can take the request.
    NoDomain,
}

/// A request under way at its decode worker and, if it has one, at its prefill worker. Dropping it frees both.
#[derive(Debug)]
#[must_use = "dropping it frees the workers"]
pub struct Placement {
    /// At the decode worker.
    pub decode: Reservation,
    /// At the prefill worker; none if the decode worker computes the prompt, or once the prefill worker is done.
    pub prefill: Option<Reservation>,
    /// Why there is a prefill worker, or none.
    pub prefill_outcome: PrefillOutcome,
}

/// A [`Placement`] that is followed by its id.
#[derive(Debug)]
pub struct Detached {
    /// Id of the request, in both pools.
    pub request_id: String,
    /// Choice of the decode worker.
    pub decode: Choice,
    /// Choice of the prefill worker.
    pub prefill: Option<Choice>,
    /// Why there is a prefill worker, or none.
    pub prefill_outcome: PrefillOutcome,
}

// === impl PoolsConfig ===

impl Default for PoolsConfig {
    fn default() -> Self {
        // Neither is in the documents.
        Self { remote_prefill_tokens_min: 512, transfer_domain_label: "transfer-domain".to_owned() }
    }
}

// === impl Pools ===

impl Pools {
    /// Two pools without workers yet. The settings are those of the main pool.
    ///
    /// # Errors
    /// If a setting cannot be used.
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

    /// The decode workers, and workers that do both.
    #[must_use]
    pub const fn main(&self) -> &Router {
        &self.main
    }

    /// The workers for prefill only.
    #[must_use]
    pub const fn prefill(&self) -> &Router {
        &self.prefill
    }

    /// These are the workers from now on: each goes to its pool by its role.
    pub fn set_workers(&self, workers: impl IntoIterator<Item = RouterWorker>) {
        let is_prefill = |at: &RouterWorker| at.profile.role == Role::Prefill;
        let (prefill, main): (Vec<_>, Vec<_>) = workers.into_iter().partition(is_prefill);
        self.main.set_workers(main);
        self.prefill.set_workers(prefill);
    }

    /// Chooses a decode worker and, if there is one and it pays, a prefill worker.
    ///
    /// # Errors
    /// As for [`Router::select`]. What keeps a prefill worker from being chosen is no error: the request does without.
    pub async fn select(
        &self,
        prompt: &HashedPrompt,
        hints: &Hints,
    ) -> Result<Placement, RouteError> {
        let mode = hints.mode.unwrap_or(self.main.config().select.mode);
        if mode == Mode::Direct || !self.prefill.has_workers() {
            return self.local(prompt, hints, PrefillOutcome::NoWorker).await;
        }
        if self.is_mostly_cached(prompt, hints).await {
            return self.local(prompt, hints, PrefillOutcome::MostlyCached).await;
        }
        // Both pools know the request by one id.
        let request_id = hints.request_id.clone().unwrap_or_else(|| self.main.new_request_id());
        let request_id = Some(request_id);
        let filter =
            Filter { pin: None, roles: Vec::new(), model_type: None, ..hints.filter.clone() };
        let wanted = Hints {
            filter,
            request_id: request_id.clone(),
            expected_output_tokens: None,
            // It does without rather than wait.
            queue_timeout: Some(Duration::ZERO),
            ..hints.clone()
        };
        let prefill = match self.prefill.select_part(prompt, &wanted, Part::Prefill).await {
            Ok(prefill) => prefill,
            Err(error) => {
                let outcome = outcome(&error).ok_or(error)?;
                return self.local(prompt, hints, outcome).await;
            }
        };
        let mut wanted = Hints {
            request_id,
            // Its blocks come with the transfer, wherever they are cached: load alone decides.
            overlap_score_weight: Some(0.0),
            ..hints.clone()
        };
        let label = &self.config.transfer_domain_label;
        let domain = self.prefill.label(prefill.worker(), label);
        let has_domain = domain.is_some();
        if let Some(domain) = domain {
            wanted.filter.labels.push((label.clone(), domain));
            wanted.queue_timeout = Some(Duration::ZERO);
        }
        match self.main.select_part(prompt, &wanted, Part::Decode).await {
            Ok(decode) => {
                let prefill_outcome = PrefillOutcome::Chosen;
                Ok(Placement { decode, prefill: Some(prefill), prefill_outcome })
            }
            // Elsewhere there may be room.
            Err(error) if has_domain && outcome(&error).is_some() => {
                drop(prefill);
                self.local(prompt, hints, PrefillOutcome::NoDomain).await
            }
            Err(error) => Err(error),
        }
    }

    /// Chooses a worker that does both, as when prefill has failed.
    ///
    /// # Errors
    /// As for [`Router::select`].
    pub async fn select_local(
        &self,
        prompt: &HashedPrompt,
        hints: &Hints,
    ) -> Result<Placement, RouteError> {
        self.local(prompt, hints, PrefillOutcome::NotAsked).await
    }

    async fn local(
        &self,
        prompt: &HashedPrompt,
        hints: &Hints,
        prefill_outcome: PrefillOutcome,
    ) -> Result<Placement, RouteError> {
        let decode = self.main.select_hashed(prompt, hints).await?;
        Ok(Placement { decode, prefill: None, prefill_outcome })
    }

    /// The first token of a detached request is out: its prefill worker is done with it.
    ///
    /// # Errors
    /// If the id cannot be one.
    pub fn mark_prefill_completed(&self, request_id: &str) -> Result<Update, ConfigError> {
        self.report(request_id, |router| router.mark_prefill_completed(request_id))
    }

    /// A detached request has so many tokens of output in all so far: its prefill worker is done with it.
    ///
    /// # Errors
    /// If the id cannot be one.
    pub fn report_output(&self, request_id: &str, tokens: u64) -> Result<Update, ConfigError> {
        if tokens == 0 {
            // A sign of life.
            let update = self.main.report_output(request_id, 0)?;
            let prefill = self.prefill.report_output(request_id, 0)?;
            return Ok(if update == Update::Unknown { prefill } else { update });
        }
        self.report(request_id, |router| router.report_output(request_id, tokens))
    }

    /// A detached request has ended. None if no such request is under way.
    ///
    /// # Errors
    /// If the id cannot be one.
    pub fn free(
        &self,
        request_id: &str,
        ended: Ended,
        has_prefill_failed: Option<bool>,
    ) -> Result<Option<Freed>, ConfigError> {
        let freed = self.main.free(request_id, ended)?;
        let of_pair = Ended { has_failed: has_prefill_failed, cached_tokens: None };
        // Its main worker may be gone. That is not the doing of its prefill worker.
        if freed.is_none() && !self.prefill.is_paired(request_id)? {
            return self.prefill.free(request_id, ended);
        }
        let prefill = self.prefill.free(request_id, of_pair)?;
        Ok(freed.or(prefill))
    }

    /// Whether a request of either pool has that id.
    #[must_use]
    pub fn has_request(&self, request_id: &str) -> bool {
        self.main.has_request(request_id) || self.prefill.has_request(request_id)
    }

    /// Applies a report to a request. Output means that its prefill worker is done, if it has another worker, too.
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

    /// Whether a decode worker had better compute the rest of a prompt itself.
    async fn is_mostly_cached(&self, prompt: &HashedPrompt, hints: &Hints) -> bool {
        let least = self.config.remote_prefill_tokens_min;
        if prompt.input_tokens < least {
            return true;
        }
        // Whatever refuses the request here refuses it again where it is placed.
        let local = self.main.preview(prompt, hints).await;
        local.is_ok_and(|local| local.decision.cost.new_prefill_tokens < least as f64)
    }
}

/// What an error of the prefill pool means for a request that can do without; none if it cannot.
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
    /// The prefill worker is done: its load ends.
    pub fn prefill_done(&mut self) {
        if let Some(prefill) = self.prefill.take() {
            let _freed = prefill.end(Ended { has_failed: Some(false), cached_tokens: None });
        }
    }

    /// The prefill worker failed the request: one that fails too often is left alone for a while. Drop the placement, and
    /// go on with [`Pools::select_local`].
    pub fn prefill_failed(&mut self) {
        if let Some(prefill) = self.prefill.take() {
            prefill.failed();
        }
    }

    /// The first token is out, so the prefill worker is done, too.
    pub fn first_token(&mut self) {
        self.prefill_done();
        self.decode.first_token();
    }

    /// So many tokens of output in all so far. The first of them ends the prefill worker's load.
    pub fn output_tokens(&mut self, tokens: u64) {
        if tokens > 0 {
            self.prefill_done();
        }
        self.decode.output_tokens(tokens);
    }

    /// The request is still under way, at its prefill worker too: the lease of neither ends.
    pub fn is_alive(&self) {
        if let Some(prefill) = &self.prefill {
            prefill.output_tokens(0);
        }
        self.decode.output_tokens(0);
    }

    /// Hands the request over to whoever knows its id.
    #[must_use]
    pub fn detach(self) -> Detached {
        let (request_id, decode) = self.decode.detach();
        let prefill = self.prefill.map(|prefill| prefill.detach().1);
        Detached { request_id, decode, prefill, prefill_outcome: self.prefill_outcome }
    }
}
