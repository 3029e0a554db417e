use super::mode::Mode;
use crate::route::active::RankLoad;
use crate::route::cost::{Cost, TierBlocks};
use crate::route::fetch::{FetchPlan, NoFetch};
use crate::route::trust::Trust;
use kvasir_proto::types::WorkerKey;
use std::collections::BTreeMap;
use std::fmt;

/// What removed a rank from the choice; the first of these that is true of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Removed {
    /// The request is pinned to another one.
    NotPinned,
    /// The request allows other workers only.
    NotAllowed,
    /// The request excludes the worker.
    Excluded,
    /// Its worker has another role.
    Role,
    /// Its worker does not serve this kind of requests.
    ModelType,
    /// Its worker lacks a required label.
    Label,
    /// Its worker failed of late.
    Ejected,
    /// Too many of its blocks are in use.
    DecodeBlocksBusy,
    /// It has too many tokens to compute.
    PrefillTokensBusy,
    /// It has too many tokens to compute for its steps.
    PrefillFractionBusy,
}

/// How many ranks were removed, by what. Among a thousand ranks, a map would be searched a thousand times.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct RemovedCounts([usize; Removed::ALL.len()]);

/// Why a rank was chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Reason {
    /// Nobody else was left.
    OnlyOne,
    /// Its score is the lowest.
    LowestScore,
    /// Its score is the lowest, as is that of others, and it has less to do than they.
    LeastLoadedOfEqual,
    /// It is as good as others, and it was its turn.
    TurnOfEqual,
    /// It was drawn by the temperature.
    Sampled,
    /// It was its turn.
    Turn,
    /// It was drawn.
    Random,
    /// It has less to do than another one that was drawn.
    LessLoadedOfTwo,
    /// The request names it.
    Direct,
}

/// What was known of a rank.
#[derive(Debug, Clone, PartialEq)]
pub struct Explanation {
    /// The rank.
    pub worker: WorkerKey,
    /// What removed it; none if it could be chosen.
    pub removed: Option<Removed>,
    /// Blocks of the request that it holds, as an index knows.
    pub overlap: TierBlocks,
    /// How far the index's knowledge of it can be trusted; deducted from `overlap`.
    pub trust: Trust,
    /// Leading blocks of the request that its requests under way use.
    pub shared_blocks: u32,
    /// Blocks that it would fetch from peers.
    pub fetch_blocks: u32,
    /// Its requests under way.
    pub load: RankLoad,
    /// The terms of its cost.
    pub cost: Cost,
    /// Factor of its score for what is preferred: below 1 for better, 1 for neither.
    pub preference: f64,
    /// Factor of its score for its age, at least 1.
    pub slow_start: f64,
    /// By which it was compared, where the mode compares. Less is better.
    pub score: f64,
}

/// A rank for a request.
#[derive(Debug, Clone, PartialEq)]
pub struct Decision {
    /// Its place among the candidates.
    pub candidate: usize,
    /// The rank.
    pub worker: WorkerKey,
    /// How it was chosen.
    pub mode: Mode,
    /// Why.
    pub reason: Reason,
    /// Leading blocks of the prompt that the rank holds, or that other requests are computing there, by tier.
    pub overlap: TierBlocks,
    /// What the rank had better fetch from peers, or why nothing.
    pub fetch: Result<FetchPlan, NoFetch>,
    /// The terms of its cost, whatever the mode: what to book.
    pub cost: Cost,
    /// By which it was compared.
    pub score: f64,
    /// Ranks that could be chosen.
    pub eligible: usize,
    /// How many others were removed, by what.
    pub removed: BTreeMap<Removed, usize>,
    /// Whether all ranks that the request may go to had failed of late, so that this was ignored.
    pub is_ejection_ignored: bool,
    /// All candidates in their order, if the request asks for it; else none.
    pub explanations: Vec<Explanation>,
}

/// Why there is no rank for a request.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum SelectError {
    /// There are no candidates.
    #[error("there are no workers")]
    NoWorkers,
    /// The request may go to none of them: trying again does not help while it stays as it is.
    #[error("no worker is allowed to have the request ({})", counts(removed))]
    NoneAllowed {
        /// How many were removed, by what.
        removed: BTreeMap<Removed, usize>,
        /// All candidates, if the request asks for it.
        explanations: Vec<Explanation>,
    },
    /// All that the request may go to are busy: it may be tried again later.
    #[error("all workers are busy ({})", counts(removed))]
    AllBusy {
        /// How many were removed, by what.
        removed: BTreeMap<Removed, usize>,
        /// All candidates, if the request asks for it.
        explanations: Vec<Explanation>,
    },
    /// Mode `direct` needs a request that names a worker.
    #[error("the request names no worker, which mode direct requires")]
    NoTarget,
    /// The worker or rank that the request names is not there.
    #[error("the worker that the request names is not there")]
    UnknownTarget,
}

// === impl Removed ===

impl Removed {
    /// All, in their order.
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

    /// Whether it passes with the work under way.
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

    /// Those of which there are any.
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
