use super::mode::Mode;
use super::question::{Candidate, Preferences, Question, Vitals};
use crate::route::active::RankLoad;
use crate::route::cost::{Cost, CostConfig, CostInput, FetchCost, Prices, real};
use crate::route::error::{ConfigError, check};
use std::time::Duration;

/// Slow start: limits the load of a worker that has just joined. It is idle and its cache is empty, so every request
/// would go there.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SlowStart {
    /// Duration of the slow start; 0 disables it.
    pub window: Duration,
    /// Initial fraction of the worker's normal share, above 0, at most 1. It grows linearly to 1.
    pub share_min: f64,
}

/// Weights of preferences for a rank. 0 disables a preference.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PreferenceWeights {
    /// The rank served the session before.
    pub session: f64,
    /// The worker has the adapter loaded.
    pub adapter: f64,
}

/// Score of a rank with its components.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Score {
    pub(super) cost: Cost,
    pub(super) preference: f64,
    pub(super) slow_start: f64,
    /// Less is better.
    pub(super) value: f64,
}

/// Scores ranks for one request.
#[derive(Debug)]
pub(super) struct Scorer<'a> {
    prices: Prices,
    blocks: u32,
    is_kv: bool,
    slow_start: SlowStart,
    weights: PreferenceWeights,
    /// `None` if the request has no preferences.
    preferences: Option<Preferences<'a>>,
    blocks_per_token: f64,
    block_size: u64,
}

// === impl SlowStart ===

impl Default for SlowStart {
    fn default() -> Self {
        // Not in the documents. A router that starts sees all workers join together, and slows down none.
        Self { window: Duration::from_secs(30), share_min: 0.1 }
    }
}

impl SlowStart {
    /// Checks the settings.
    ///
    /// # Errors
    /// If the share is not above 0 and at most 1.
    pub fn check(&self) -> Result<(), ConfigError> {
        let is_good = self.share_min > 0.0 && self.share_min <= 1.0;
        check(is_good, "slow start share", "must be more than 0 and at most 1")
    }

    /// Factor of the score of a worker of this age; at least 1.
    fn factor(&self, age: Duration) -> f64 {
        if age >= self.window {
            return 1.0;
        }
        let factor = 1.0 / (age.as_secs_f64() / self.window.as_secs_f64()).max(self.share_min);
        debug_assert!(factor >= 1.0, "{factor} for {age:?}");
        factor
    }
}

// === impl PreferenceWeights ===

impl Default for PreferenceWeights {
    fn default() -> Self {
        // Not in the documents. With 1, a rank wins that costs up to 2.1 times as much.
        Self { session: 1.0, adapter: 1.0 }
    }
}

impl PreferenceWeights {
    /// Checks the weights.
    ///
    /// # Errors
    /// If a weight is negative or not finite.
    pub fn check(&self) -> Result<(), ConfigError> {
        let is_good = |weight: f64| weight.is_finite() && weight >= 0.0;
        check(is_good(self.session), "session affinity weight", "must be at least 0")?;
        check(is_good(self.adapter), "adapter weight", "must be at least 0")
    }

    /// Returns the factor of a rank's score: e^−tanh(sum of the weights that apply), upstream's formula for preferred
    /// labels. The factor is between 1/e and e, so that no preference outweighs all load.
    fn factor(&self, candidate: &Candidate<'_>, wanted: &Preferences<'_>) -> f64 {
        let mut sum = 0.0;
        for label in wanted.labels {
            if candidate.profile.labels.get(&label.key) == Some(&label.value) {
                sum += label.weight;
            }
        }
        if wanted.session == Some(candidate.key) {
            sum += self.session;
        }
        if wanted.adapter.is_some_and(|adapter| candidate.adapters.contains(adapter)) {
            sum += self.adapter;
        }
        if sum == 0.0 { 1.0 } else { (-sum.tanh()).exp() }
    }
}

// === impl Scorer ===

impl<'a> Scorer<'a> {
    /// Prepares to score the candidates of one request. The request's `overlap_score_weight` replaces the configured
    /// one.
    pub(super) fn new(
        question: &Question<'a>,
        mut cost: CostConfig,
        slow_start: SlowStart,
        weights: PreferenceWeights,
        mode: Mode,
    ) -> Self {
        if let Some(weight) = question.overlap_score_weight {
            cost.overlap_score_weight = weight;
        }
        let wanted = question.preferences;
        let has_none =
            wanted.labels.is_empty() && wanted.session.is_none() && wanted.adapter.is_none();
        Self {
            prices: cost.prices(question.input_tokens, question.block_size),
            blocks: question.blocks,
            is_kv: mode == Mode::Kv,
            slow_start,
            weights,
            preferences: (!has_none).then_some(wanted),
            blocks_per_token: f64::from(question.block_size.get()).recip(),
            block_size: u64::from(question.block_size.get()),
        }
    }

    /// Whether the request has no preferences.
    pub(super) const fn is_plain(&self) -> bool {
        self.preferences.is_none()
    }

    /// Computes the score of a candidate, with its factors. Lower is better.
    pub(super) fn score(&self, candidate: &Candidate<'_>) -> Score {
        let vitals = candidate.vitals();
        let preferences = self.preferences.as_ref();
        let preference = preferences.map_or(1.0, |wanted| self.weights.factor(candidate, wanted));
        let slow_start = self.slow_start.factor(candidate.age);
        let plain = self.value(&vitals, candidate.fetch);
        let value = plain * preference * slow_start;
        let cost = self.cost(&vitals, candidate.fetch);
        Score { cost, preference, slow_start, value }
    }

    /// Score of a rank without preference and slow start that fetches nothing.
    // A decision scores each rank. As a separate call, this would write many values that are never read.
    #[inline(always)]
    pub(super) fn plain_value(&self, vitals: &Vitals) -> f64 {
        self.value(vitals, None)
    }

    #[inline(always)]
    fn value(&self, vitals: &Vitals, fetch: Option<FetchCost>) -> f64 {
        if self.is_kv {
            return self.cost(vitals, fetch).total;
        }
        // Includes the request itself: an idle worker in slow start has no load that a factor could raise.
        self.load_blocks(&vitals.load) + f64::from(self.blocks.max(1))
    }

    /// Load of a rank in blocks: blocks in use plus blocks to compute.
    #[inline(always)]
    pub(super) fn load_blocks(&self, load: &RankLoad) -> f64 {
        load.active_blocks() + real(load.prefill_tokens) * self.blocks_per_token
    }

    /// Computes the work of the request at a rank, in blocks.
    #[inline(always)]
    fn cost(&self, vitals: &Vitals, fetch: Option<FetchCost>) -> Cost {
        let Vitals { load, shared_blocks, overlap: known, capacity_blocks } = vitals;
        // Active requests use these blocks or are about to compute them. So a placed request counts immediately, before
        // the index reports its blocks. A burst with one new prefix follows its first request until the load there
        // costs more than computing the prefix again.
        let overlap = known.expecting(*shared_blocks);
        // Blocks missing in the index are being computed. Waiting for them takes no longer than computing them
        // elsewhere, and saves the work. They delay other requests, not this one.
        let expected_blocks = overlap.total().saturating_sub(known.total());
        let expected_tokens = u64::from(expected_blocks) * self.block_size;
        let decode_blocks = load.potential_blocks(self.blocks, *shared_blocks);
        self.prices.cost(&CostInput {
            overlap,
            active_prefill_tokens: load.pending_tokens().saturating_sub(expected_tokens),
            decode_blocks,
            context_blocks: real(load.context_tokens) * self.blocks_per_token
                + real(load.foreign_blocks),
            given_blocks: real(load.given_tokens) * self.blocks_per_token,
            capacity_blocks: *capacity_blocks,
            fetch,
        })
    }
}
