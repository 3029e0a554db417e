use super::mode::Mode;
use crate::route::active::RankLoad;
use crate::route::cost::{Cost, TierBlocks};
use crate::route::fetch::{FetchPlan, NoFetch};
use crate::route::trust::Trust;
use kvasir_proto::types::WorkerKey;
use std::collections::BTreeMap;
use std::fmt;

/// Why a rank cannot be chosen: the first reason in this order that applies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Removed {
    /// The request is pinned to another rank.
    NotPinned,
    /// The request allows only other workers.
    NotAllowed,
    /// The request excludes the worker.
    Excluded,
    /// The worker has another role.
    Role,
    /// The worker does not serve this kind of request.
    ModelType,
    /// The worker lacks a required label.
    Label,
    /// The worker is ejected after failures.
    Ejected,
    /// Too many of the rank's blocks are in use.
    DecodeBlocksBusy,
    /// The rank has too many tokens to compute.
    PrefillTokensBusy,
    /// The rank has too many tokens to compute, relative to its tokens per step.
    PrefillFractionBusy,
}

/// Number of removed ranks by reason. An array: among a thousand ranks, a map would be searched a thousand times.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct RemovedCounts([usize; Removed::ALL.len()]);

/// Why a rank was chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Reason {
    /// No other rank remained.
    OnlyOne,
    /// The rank has the lowest score.
    LowestScore,
    /// Several ranks have the lowest score, and this one has the least load.
    LeastLoadedOfEqual,
    /// Several ranks are equal, and this one was next in round-robin order.
    TurnOfEqual,
    /// Sampled by the temperature.
    Sampled,
    /// Next in round-robin order.
    Turn,
    /// Drawn at random.
    Random,
    /// The less loaded of two ranks drawn at random.
    LessLoadedOfTwo,
    /// The request names this rank.
    Direct,
}

/// The data known of a rank in a decision.
#[derive(Debug, Clone, PartialEq)]
pub struct Explanation {
    /// The rank.
    pub worker: WorkerKey,
    /// Why the rank was removed; `None` if it could be chosen.
    pub removed: Option<Removed>,
    /// The rank's cached blocks of the request, from the index.
    pub overlap: TierBlocks,
    /// Trust in the index's data about the rank, already deducted from `overlap`.
    pub trust: Trust,
    /// Leading blocks of the request that the rank's active requests use.
    pub shared_blocks: u32,
    /// Blocks that the rank would fetch from peers.
    pub fetch_blocks: u32,
    /// Load of the rank's active requests.
    pub load: RankLoad,
    /// Terms of the cost.
    pub cost: Cost,
    /// Preference factor of the score: below 1 for a preferred rank, 1 if neutral.
    pub preference: f64,
    /// Slow-start factor of the score, from the worker's age; at least 1.
    pub slow_start: f64,
    /// The score, in modes that compare. Less is better.
    pub score: f64,
}

/// The chosen rank for a request.
#[derive(Debug, Clone, PartialEq)]
pub struct Decision {
    /// Index among the candidates.
    pub candidate: usize,
    /// The rank.
    pub worker: WorkerKey,
    /// Mode of the choice.
    pub mode: Mode,
    /// Reason of the choice.
    pub reason: Reason,
    /// Leading blocks of the prompt that the rank has, or that other requests are computing there, by tier.
    pub overlap: TierBlocks,
    /// The blocks that the rank should fetch from peers, or why it should fetch none.
    pub fetch: Result<FetchPlan, NoFetch>,
    /// Terms of the cost, in every mode: the load to record.
    pub cost: Cost,
    /// The rank's score.
    pub score: f64,
    /// Number of ranks that could be chosen.
    pub eligible: usize,
    /// Number of removed ranks by reason.
    pub removed: BTreeMap<Removed, usize>,
    /// Whether ejection was ignored, because all ranks that the request may use were ejected.
    pub is_ejection_ignored: bool,
    /// All candidates in order, if the request sets `explain`; otherwise empty.
    pub explanations: Vec<Explanation>,
}

/// Why no rank was chosen.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum SelectError {
    /// There are no candidates.
    #[error("there are no workers")]
    NoWorkers,
    /// The request's constraints remove all candidates. An unchanged retry does not help.
    #[error("no worker is allowed to have the request ({})", counts(removed))]
    NoneAllowed {
        /// Number of removed ranks by reason.
        removed: BTreeMap<Removed, usize>,
        /// All candidates, if the request sets `explain`.
        explanations: Vec<Explanation>,
    },
    /// All ranks that the request may use are busy: retry later.
    #[error("all workers are busy ({})", counts(removed))]
    AllBusy {
        /// Number of removed ranks by reason.
        removed: BTreeMap<Removed, usize>,
        /// All candidates, if the request sets `explain`.
        explanations: Vec<Explanation>,
    },
    /// Mode `direct` requires a request that names a worker.
    #[error("the request names no worker, which mode direct requires")]
    NoTarget,
    /// The worker or rank that the request names does not exist.
    #[error("the worker that the request names is not there")]
    UnknownTarget,
}

// === impl Removed ===

impl Removed {
    /// All reasons, in order.
    const ALL: [Self; 10] = [
        Self::NotPinned,
        Self::NotAllowed,
        Self::Excluded,
        Self::Role,
        Self::ModelType,
        Self::Label,
        Self::Ejected,
        Self::DecodeBlocksBusy,
        Self::PrefillTokensBusy,
        Self::PrefillFractionBusy,
    ];

    /// Whether the reason is temporary load.
    #[must_use]
    pub fn is_busy(self) -> bool {
        match self {
            Self::DecodeBlocksBusy | Self::PrefillTokensBusy | Self::PrefillFractionBusy => true,
            Self::NotPinned
            | Self::NotAllowed
            | Self::Excluded
            | Self::Role
            | Self::ModelType
            | Self::Label
            | Self::Ejected => false,
        }
    }
}

impl fmt::Display for Removed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotPinned => "not pinned",
            Self::NotAllowed => "not allowed",
            Self::Excluded => "excluded",
            Self::Role => "of another role",
            Self::ModelType => "not serving this kind of requests",
            Self::Label => "without a required label",
            Self::Ejected => "failed of late",
            Self::DecodeBlocksBusy => "above the threshold of decode blocks",
            Self::PrefillTokensBusy => "above the threshold of prefill tokens",
            Self::PrefillFractionBusy => "above the threshold of prefill tokens for their steps",
        })
    }
}

// === impl RemovedCounts ===

impl RemovedCounts {
    pub(super) fn add(&mut self, what: Removed) {
        if let Some(count) = self.0.get_mut(what as usize) {
            *count += 1;
        }
    }

    pub(super) fn sum(&self) -> usize {
        self.0.iter().sum()
    }

    pub(super) fn has(&self, is_meant: impl Fn(Removed) -> bool) -> bool {
        self.entries().any(|(what, _)| is_meant(what))
    }

    pub(super) fn to_map(self) -> BTreeMap<Removed, usize> {
        self.entries().collect()
    }

    /// Reasons with a count above 0.
    fn entries(&self) -> impl Iterator<Item = (Removed, usize)> {
        Removed::ALL.into_iter().zip(self.0).filter(|(_, count)| *count > 0)
    }
}

fn counts(removed: &BTreeMap<Removed, usize>) -> String {
    let counts: Vec<_> = removed.iter().map(|(what, count)| format!("{count} {what}")).collect();
    counts.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_removes_is_counted_by_its_kind() {
        let mut counts = RemovedCounts::default();
        for (number, what) in Removed::ALL.into_iter().enumerate() {
            assert_eq!(what as usize, number, "the order of the type");
            (0..=number).for_each(|_| counts.add(what));
        }
        let expected = Removed::ALL.into_iter().zip(1..).collect();
        assert_eq!(counts.to_map(), expected);
        assert!(counts.has(Removed::is_busy) && !RemovedCounts::default().has(|_any| true));
        assert!(RemovedCounts::default().to_map().is_empty());
    }
}
