//! State of one open source, and results of its calls.

use super::persisted::Persisted;
use super::report::SourceCounts;
use crate::consolidate::{Consolidated, ConsolidatedSource, HoldingChange, Naming, SourceNumber};
use crate::disk::{SourceKind, Verdict};
use kvasir_proto::convert::KnownName;
use kvasir_proto::types::{
    CopyMode, DpRank, KvEvent, Reason, SourceState, SourceStatus, StateReason,
};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;

/// Key of an open source: its number, and a counter that distinguishes earlier sources with this number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Key {
    pub(super) number: SourceNumber,
    pub(super) opened: u64,
}

/// How a source continues after a restart of the agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Resumption {
    /// The source does not continue.
    Never,
    /// From its position on disk, once its engine has proved that it survived.
    Position(SourceKind),
    /// By an image of all its blocks at its rank, before other batches.
    Image(DpRank),
}

impl Resumption {
    /// Kind of the position on disk; `None` without a position.
    pub(super) const fn kind(self) -> Option<SourceKind> {
        match self {
            Self::Position(kind) => Some(kind),
            Self::Never | Self::Image(_) => None,
        }
    }
}

/// A source's use of a rank.
#[derive(Debug, Default)]
pub(super) struct RankUse {
    /// Number of batches so far.
    pub(super) batches: u64,
    /// Whether a batch was published since the last clear.
    pub(super) since_clear: bool,
}

#[derive(Debug)]
pub(super) struct Source {
    pub(super) opened: u64,
    pub(super) name: String,
    pub(super) copy_mode: CopyMode,
    /// How the source names blocks, if sources are consolidated.
    pub(super) naming: Naming,
    pub(super) ranks: BTreeMap<DpRank, RankUse>,
    pub(super) counts: SourceCounts,
    /// Operations that had not been taken at the last complete clear.
    pub(super) not_taken_before: u64,
    /// Doubtful operations at the last complete clear.
    pub(super) doubtful_before: u64,
    /// Why the source is not exact, since the last complete clear.
    pub(super) reasons: Vec<StateReason>,
    /// Ranks that were not cleared since an operation was refused or in doubt.
    pub(super) uncleared: BTreeSet<DpRank>,
    pub(super) status: watch::Sender<SourceStatus<Instant>>,
    /// The source's position on disk; `None` without one, or if the position ends with the agent.
    pub(super) persisted: Option<Persisted>,
    /// Meanings of names from an earlier process, until they are taken.
    pub(super) names_left: Vec<KnownName>,
}

impl Source {
    pub(super) fn holds_something(&self) -> bool {
        self.ranks.values().any(|at| at.since_clear)
    }

    pub(super) fn is_pending(&self) -> bool {
        self.persisted.as_ref().is_some_and(|persisted| persisted.pending().is_some())
    }

    /// Whether the source may hold blocks that were not taken.
    pub(super) fn lacks_blocks(&self) -> bool {
        self.counts.not_taken() > self.not_taken_before
    }

    /// How far the source can be trusted: its reported state, but partial at best if blocks were not taken.
    pub(super) fn state(&self) -> SourceState {
        let state = self.status.borrow().state;
        // The reasons show whether the source may hold fewer blocks than indexes report.
        let is_doubtful = self.counts.doubtful > self.doubtful_before;
        let is_partial = is_doubtful || self.lacks_blocks();
        state.max(if is_partial { SourceState::Partial } else { SourceState::Exact })
    }

    /// Returns why the source's state is worse than exact, including refused blocks.
    pub(super) fn reasons(&self) -> Vec<StateReason> {
        let mut reasons = self.reasons.clone();
        let refused = self.counts.refused.saturating_add(self.counts.misplaced);
        if refused > 0 && self.lacks_blocks() {
            let reason = Reason::RefusedBlocks;
            let example = "".into();
            let since = Duration::ZERO;
            StateReason::note(&mut reasons, StateReason { reason, count: refused, example, since });
        }
        reasons
    }

    /// Records the clear of a rank. Once all ranks were cleared, earlier refusals and doubts no longer matter.
    pub(super) fn rank_cleared(&mut self, rank: DpRank) {
        self.uncleared.remove(&rank);
        if self.uncleared.is_empty() {
            self.nothing_held();
        }
    }

    /// Resets refusals and doubts, because the source holds no blocks.
    pub(super) fn nothing_held(&mut self) {
        self.not_taken_before = self.counts.not_taken();
        self.doubtful_before = self.counts.doubtful;
        self.reasons.clear();
    }

    /// Marks all ranks as uncleared, because an operation was refused or is in doubt.
    pub(super) fn doubt_ranks(&mut self) {
        self.uncleared = self.ranks.keys().copied().collect();
    }

    /// Description of the source for the consolidator.
    pub(super) const fn consolidated(&self, number: SourceNumber) -> ConsolidatedSource {
        ConsolidatedSource { number, copy_mode: self.copy_mode, naming: self.naming }
    }
}

/// Removals to publish for a rank at which a source no longer holds blocks.
#[derive(Debug)]
pub(super) struct Released {
    /// Name of the source.
    pub(super) source: String,
    pub(super) rank: DpRank,
    pub(super) changed: Consolidated,
}

impl Released {
    /// Clears a rank that had no other source.
    pub(super) fn whole(source: String, rank: DpRank) -> Self {
        let events = vec![KvEvent::Cleared];
        Self { source, rank, changed: Consolidated { events, holdings: Vec::new() } }
    }
}

/// Removals to publish because sources no longer hold blocks.
#[derive(Debug, Default)]
pub(super) struct Gone {
    pub(super) released: Vec<Released>,
    /// Resulting decision about the incarnation. If a new one begins, there is nothing to publish.
    pub(super) verdict: Option<Verdict>,
}

/// Result of a batch.
#[derive(Debug)]
pub(super) struct Outcome {
    /// Number of the batch within its source and rank, from 0.
    pub(super) id: u64,
    pub(super) refused: u64,
    pub(super) events: Vec<KvEvent>,
    /// Changes of the source's holdings.
    pub(super) holdings: Vec<HoldingChange>,
}
