use super::decision::Removed;
use crate::route::active::RankLoad;
use crate::route::error::{ConfigError, check};
use kvasir_proto::convert::WorkerProfile;

/// Thresholds above which a rank gets no request (`--active-decode-blocks-threshold` and related options of document 004).
/// `None` sets no threshold; the document gives no defaults. They can be changed at run time.
///
/// Upstream calls a worker busy when all its ranks are busy. Here requests go to ranks, so each rank is judged alone.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct BusyThresholds {
    /// Fraction of the rank's blocks in use by active requests, above 0; 1 means all. Ignored for a rank that does not
    /// report its blocks.
    pub active_decode_blocks: Option<f64>,
    /// Tokens that the rank still has to compute.
    pub active_prefill_tokens: Option<u64>,
    /// Tokens that the rank still has to compute, as a multiple of the tokens it computes in one step, above 0. Ignored
    /// for a rank that does not report its tokens per step.
    pub active_prefill_tokens_fraction: Option<f64>,
}

impl BusyThresholds {
    /// Checks all thresholds.
    ///
    /// # Errors
    /// If a threshold is not finite or not above 0.
    pub fn check(&self) -> Result<(), ConfigError> {
        for (setting, threshold) in [
            ("active decode blocks threshold", self.active_decode_blocks),
            ("active prefill tokens threshold frac", self.active_prefill_tokens_fraction),
        ] {
            let is_good = threshold.is_none_or(|at| at.is_finite() && at > 0.0);
            check(is_good, setting, "must be more than 0")?;
        }
        check(
            self.active_prefill_tokens != Some(0),
            "active prefill tokens threshold",
            "must be more than 0",
        )
    }

    /// Returns the first threshold that a busy rank exceeds. A threshold that depends on the rank's capacity is ignored
    /// if the capacity is unknown.
    #[must_use]
    pub fn exceeded(&self, load: &RankLoad, profile: &WorkerProfile) -> Option<Removed> {
        let is_above =
            |fraction: Option<f64>, capacity: Option<u64>, count: fn(&RankLoad) -> f64| {
                let limit =
                    fraction.zip(capacity).map(|(fraction, capacity)| fraction * capacity as f64);
                limit.is_some_and(|limit| count(load) > limit)
            };
        if is_above(self.active_decode_blocks, profile.total_kv_blocks, RankLoad::active_blocks) {
            return Some(Removed::DecodeBlocksBusy);
        }
        if self.active_prefill_tokens.is_some_and(|most| load.prefill_tokens > most) {
            return Some(Removed::PrefillTokensBusy);
        }
        let fraction = self.active_prefill_tokens_fraction;
        let capacity = profile.max_num_batched_tokens;
        let is_busy = is_above(fraction, capacity, |load| load.prefill_tokens as f64);
        is_busy.then_some(Removed::PrefillFractionBusy)
    }
}
