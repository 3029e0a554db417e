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

/// A rank that may get a request, as it is at this moment.
#[derive(Debug, Clone, Copy)]
pub struct Candidate<'a> {
    /// The rank.
    pub key: &'a WorkerKey,
    /// What its worker states.
    pub profile: &'a WorkerProfile,
    /// LoRA adapters that its worker has loaded.
    pub adapters: &'a BTreeSet<String>,
    /// Its requests under way.
    pub load: RankLoad,
    /// Leading blocks of the request that its requests under way use.
    pub shared_blocks: u32,
    /// Leading blocks of the request that it holds, as an index knows; none if no index was asked.
    pub overlap: TierBlocks,
    /// How far that can be trusted; `overlap` has it deducted.
    pub trust: Trust,
    /// What it would fetch from peers; none if nothing.
    pub fetch: Option<FetchCost>,
    /// How long ago its worker joined.
    pub age: Duration,
    /// Whether its worker failed of late; see [`Outliers`](crate::route::Outliers).
    pub is_ejected: bool,
}

/// What the cost at a rank depends on.
#[derive(Debug, Clone, Copy)]
pub struct Vitals {
    /// Its requests under way.
    pub load: RankLoad,
    /// See [`Candidate::shared_blocks`].
    pub shared_blocks: u32,
    /// See [`Candidate::overlap`].
    pub overlap: TierBlocks,
    /// Blocks that fit into its accelerator; 0 if its worker does not state them.
    pub capacity_blocks: u64,
}

/// The ranks of a decision, in the order of their keys.
///
/// They are looked up by their numbers when they are needed: a decision among a thousand ranks writes none of them down.
pub trait Candidates {
    /// How many there are.
    fn count(&self) -> usize;

    /// The rank with this number; none beyond the count.
    fn at(&self, number: usize) -> Option<Candidate<'_>>;

    /// Whether all are known to be settled: none failed of late, none is so young that its age matters, and none would fetch
    /// blocks. Then a request without wishes depends on nothing but [`Vitals`].
    fn are_settled(&self) -> bool {
        false
    }

    /// What the cost at the rank with this number depends on; none beyond the count.
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

/// A worker, or one rank of it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Pin {
    /// The worker.
    pub worker: WorkerId,
    /// Its rank; any if none.
    pub rank: Option<u32>,
}

/// What a rank must be to get a request. The default allows every rank.
#[derive(Debug, Clone, Copy, Default)]
pub struct Constraints<'a> {
    /// Only this one.
    pub pin: Option<&'a Pin>,
    /// Only these workers.
    pub allowed: Option<&'a BTreeSet<WorkerId>>,
    /// None of these workers, as when a request is tried again.
    pub excluded: Option<&'a BTreeSet<WorkerId>>,
    /// Only workers of these roles; of any if there are none.
    pub roles: &'a [Role],
    /// Only workers with all these labels, by key and value.
    pub labels: &'a [(String, String)],
    /// Only workers that serve this kind of requests.
    pub model_type: Option<ModelType>,
}

/// A label that is better to have.
#[derive(Debug, Clone, PartialEq)]
pub struct PreferredLabel {
    /// Its key.
    pub key: String,
    /// Its value.
    pub value: String,
    /// How much better; less than 0 for one that is better not to have.
    pub weight: f64,
}

/// What makes a rank better for a request than its cost says. The default prefers none.
#[derive(Debug, Clone, Copy, Default)]
pub struct Preferences<'a> {
    /// Labels of its worker.
    pub labels: &'a [PreferredLabel],
    /// The rank that served the session before; see [`Sessions`](crate::route::Sessions).
    pub session: Option<&'a WorkerKey>,
    /// The LoRA adapter that the request needs.
    pub adapter: Option<&'a str>,
}

/// A request that needs a rank.
#[derive(Debug, Clone, Copy)]
pub struct Question<'a> {
    /// Tokens of its prompt.
    pub input_tokens: u64,
    /// Whole blocks of its prompt.
    pub blocks: u32,
    /// Tokens per block.
    pub block_size: NonZeroU32,
    /// Its own mode.
    pub mode: Option<Mode>,
    /// Its own weight (`kv_overlap_score_weight` of document 004).
    pub overlap_score_weight: Option<f64>,
    /// Its own temperature.
    pub temperature: Option<f64>,
    /// What must be.
    pub constraints: Constraints<'a>,
    /// What is better.
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
    /// Whether a rank is meant.
    #[must_use]
    pub fn is(&self, key: &WorkerKey) -> bool {
        self.worker == key.worker && self.rank.is_none_or(|rank| rank == key.rank)
    }
}

// === impl Question ===

impl Question<'_> {
    /// A prompt without any wishes.
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

    /// Whether what the request sets itself can be used.
    ///
    /// # Errors
    /// If its weight or temperature is negative or no number, or the weight of a label is no number.
    pub fn check(&self) -> Result<(), ConfigError> {
        self.overlap_score_weight.map_or(Ok(()), check_weight)?;
        self.temperature.map_or(Ok(()), check_temperature)?;
        let mut labels = self.preferences.labels.iter();
        let are_numbers = labels.all(|label| label.weight.is_finite());
        check(are_numbers, "preferred label", "must have a number as its weight")
    }
}

/// Refuses a temperature that cannot be used.
pub(super) fn check_temperature(temperature: f64) -> Result<(), ConfigError> {
    let is_good = temperature.is_finite() && temperature >= 0.0;
    check(is_good, "temperature", "must be at least 0")
}
