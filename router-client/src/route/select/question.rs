use super::mode::Mode;
use crate::route::active::RankLoad;
use crate::route::cost::{FetchCost, TierBlocks, check_weight};
use crate::route::error::{ConfigError, check};
use crate::route::trust::Trust;
use kvasir_proto::convert::{ModelType, Role, WorkerProfile};
use kvasir_proto::types::{WorkerId, WorkerKey};
use std::collections::BTreeSet;
use std::num::NonZeroU32;
use std::time::Duration;

/// A rank that may receive a request, in its current state.
#[derive(Debug, Clone, Copy)]
pub struct Candidate<'a> {
    /// The rank.
    pub key: &'a WorkerKey,
    /// Profile that the worker published.
    pub profile: &'a WorkerProfile,
    /// LoRA adapters loaded at the worker.
    pub adapters: &'a BTreeSet<String>,
    /// Load of the rank's active requests.
    pub load: RankLoad,
    /// Leading blocks of the request that the rank's active requests use.
    pub shared_blocks: u32,
    /// Leading blocks of the request that the rank has cached, from the index; none if the index was not queried.
    pub overlap: TierBlocks,
    /// Trust in the index's data, already deducted from `overlap`.
    pub trust: Trust,
    /// Effect of fetching blocks from peers; `None` without a fetch.
    pub fetch: Option<FetchCost>,
    /// Time since the worker joined.
    pub age: Duration,
    /// Whether the worker is ejected after failures; see [`Outliers`](crate::route::Outliers).
    pub is_ejected: bool,
}

/// The data on which the cost at a rank depends.
#[derive(Debug, Clone, Copy)]
pub struct Vitals {
    /// Load of the rank's active requests.
    pub load: RankLoad,
    /// See [`Candidate::shared_blocks`].
    pub shared_blocks: u32,
    /// See [`Candidate::overlap`].
    pub overlap: TierBlocks,
    /// Total blocks in the rank's device memory; 0 if unknown.
    pub capacity_blocks: u64,
}

/// The ranks of a decision, ordered by key.
///
/// Ranks are looked up by number on demand. A decision among a thousand ranks allocates no list.
pub trait Candidates {
    /// Number of candidates.
    fn count(&self) -> usize;

    /// The candidate with this number; `None` beyond the count.
    fn at(&self, number: usize) -> Option<Candidate<'_>>;

    /// Whether all ranks are known to be settled: none is ejected, none is so young that its age counts, and none would
    /// fetch blocks. Then a request without preferences depends only on [`Vitals`].
    fn are_settled(&self) -> bool {
        false
    }

    /// The data on which the cost at the rank with this number depends; `None` beyond the count.
    fn vitals(&self, number: usize) -> Option<Vitals> {
        self.at(number).map(|at| at.vitals())
    }
}

impl Candidates for Vec<Candidate<'_>> {
    fn count(&self) -> usize {
        self.len()
    }

    fn at(&self, number: usize) -> Option<Candidate<'_>> {
        self.get(number).copied()
    }
}

/// Names a worker, or one of its ranks.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Pin {
    /// The worker.
    pub worker: WorkerId,
    /// Rank of the worker; `None` for any.
    pub rank: Option<u32>,
}

/// Constraints on the rank for a request. The default allows every rank.
#[derive(Debug, Clone, Copy, Default)]
pub struct Constraints<'a> {
    /// Only this worker or rank.
    pub pin: Option<&'a Pin>,
    /// Only these workers.
    pub allowed: Option<&'a BTreeSet<WorkerId>>,
    /// Not these workers, for example when a request is retried.
    pub excluded: Option<&'a BTreeSet<WorkerId>>,
    /// Only workers with a listed role. Empty: any role.
    pub roles: &'a [Role],
    /// Only workers with all these labels, by key and value.
    pub labels: &'a [(String, String)],
    /// Only workers that serve this kind of request.
    pub model_type: Option<ModelType>,
}

/// A label that makes a worker preferable.
#[derive(Debug, Clone, PartialEq)]
pub struct PreferredLabel {
    /// Label key.
    pub key: String,
    /// Label value.
    pub value: String,
    /// Strength of the preference; below 0, workers without the label are preferred.
    pub weight: f64,
}

/// Reasons to prefer a rank beyond its cost. The default has no preferences.
#[derive(Debug, Clone, Copy, Default)]
pub struct Preferences<'a> {
    /// Preferred labels of the worker.
    pub labels: &'a [PreferredLabel],
    /// The rank that served the session before; see [`Sessions`](crate::route::Sessions).
    pub session: Option<&'a WorkerKey>,
    /// LoRA adapter that the request uses.
    pub adapter: Option<&'a str>,
}

/// A request for which a rank is to be chosen.
#[derive(Debug, Clone, Copy)]
pub struct Question<'a> {
    /// Tokens of the prompt.
    pub input_tokens: u64,
    /// Complete blocks of the prompt.
    pub blocks: u32,
    /// Tokens per block.
    pub block_size: NonZeroU32,
    /// The request's mode; `None` for the configured one.
    pub mode: Option<Mode>,
    /// The request's weight (`kv_overlap_score_weight` of document 004); `None` for the configured one.
    pub overlap_score_weight: Option<f64>,
    /// The request's temperature; `None` for the configured one.
    pub temperature: Option<f64>,
    /// Constraints that the rank must satisfy.
    pub constraints: Constraints<'a>,
    /// Preferences between ranks.
    pub preferences: Preferences<'a>,
    /// Whether to explain the decision rank by rank.
    pub explain: bool,
}

// === impl Candidate ===

impl Candidate<'_> {
    pub(super) fn vitals(&self) -> Vitals {
        let Self { load, shared_blocks, overlap, .. } = *self;
        let capacity_blocks = self.profile.total_kv_blocks.unwrap_or(0);
        Vitals { load, shared_blocks, overlap, capacity_blocks }
    }
}

// === impl Pin ===

impl Pin {
    /// Whether the pin names this rank.
    #[must_use]
    pub fn is(&self, key: &WorkerKey) -> bool {
        self.worker == key.worker && self.rank.is_none_or(|rank| rank == key.rank)
    }
}

// === impl Question ===

impl Question<'_> {
    /// A prompt without constraints and preferences.
    #[must_use]
    pub fn new(input_tokens: u64, block_size: NonZeroU32) -> Self {
        let blocks = input_tokens / u64::from(block_size.get());
        Self {
            input_tokens,
            blocks: u32::try_from(blocks).unwrap_or(u32::MAX),
            block_size,
            mode: None,
            overlap_score_weight: None,
            temperature: None,
            constraints: Constraints::default(),
            preferences: Preferences::default(),
            explain: false,
        }
    }

    /// Checks the request's own settings.
    ///
    /// # Errors
    /// If the weight or temperature is negative or not finite, or the weight of a label is not finite.
    pub fn check(&self) -> Result<(), ConfigError> {
        self.overlap_score_weight.map_or(Ok(()), check_weight)?;
        self.temperature.map_or(Ok(()), check_temperature)?;
        let mut labels = self.preferences.labels.iter();
        let are_numbers = labels.all(|label| label.weight.is_finite());
        check(are_numbers, "preferred label", "must have a number as its weight")
    }
}

/// Rejects an invalid temperature.
pub(super) fn check_temperature(temperature: f64) -> Result<(), ConfigError> {
    let is_good = temperature.is_finite() && temperature >= 0.0;
    check(is_good, "temperature", "must be at least 0")
}
