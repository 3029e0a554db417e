//! One open source, and what comes of what it does.

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

/// Key of an open source: its number, and a counter that tells it from earlier sources with this number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Key {
    pub(super) number: SourceNumber,
    pub(super) opened: u64,
}

/// How a source continues after a restart of the agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Resumption {
    /// It does not continue.
    Never,
    /// From its position on disk, once its engine has proved that it survived.
    Position(SourceKind),
    /// By an image of all its blocks at its rank, before other batches.
    Image(DpRank),
}

impl Resumption {
    /// What is on disk of its position; none if nothing is.
    pub(super) const fn kind(self) -> Option<SourceKind> {
        match self {
            Self::Position(kind) => Some(kind),
            Self::Never | Self::Image(_) => None,
        }
    }
}

/// What a source has published for a rank.
#[derive(Debug, Default)]
pub(super) struct RankUse {
    /// Batches so far.
    pub(super) batches: u64,
    /// Whether any came since the last clear.
    pub(super) since_clear: bool,
}

#[derive(Debug)]
pub(super) struct Source {
    pub(super) opened: u64,
    pub(super) name: String,
    pub(super) copy_mode: CopyMode,
    /// How it names blocks, where sources are consolidated.
    pub(super) naming: Naming,
    pub(super) ranks: BTreeMap<DpRank, RankUse>,
    pub(super) counts: SourceCounts,
    /// Operations that had not been taken when it held nothing last.
    pub(super) not_taken_before: u64,
    /// Doubtful ones, likewise.
    pub(super) doubtful_before: u64,
    /// Why it is not exact, since it held nothing last.
    pub(super) reasons: Vec<StateReason>,
    /// Ranks that were not cleared since something was not taken, or was in doubt.
    pub(super) uncleared: BTreeSet<DpRank>,
    pub(super) status: watch::Sender<SourceStatus<Instant>>,
    /// What is on disk of its position; none where nothing is, or where it ends with the agent.
    pub(super) persisted: Option<Persisted>,
    /// What names meant to an earlier process, until it is asked for.
    pub(super) names_left: Vec<KnownName>,
}

impl Source {
    pub(super) fn holds_something(&self) -> bool {
        self.ranks.values().any(|at| at.since_clear)
    }

    pub(super) fn is_pending(&self) -> bool {
        self.persisted.as_ref().is_some_and(|persisted| persisted.pending().is_some())
    }

    /// Whether it may hold blocks that were not taken.
    pub(super) fn lacks_blocks(&self) -> bool {
        self.counts.not_taken() > self.not_taken_before
    }

    /// How far it can be trusted: as it reports itself, and partial at best where blocks of it were not taken.
    pub(super) fn state(&self) -> SourceState {
        let state = self.status.borrow().state;
        // The reasons state whether it may hold less than indexes know.
        let is_doubtful = self.counts.doubtful > self.doubtful_before;
        let is_partial = is_doubtful || self.lacks_blocks();
        state.max(if is_partial { SourceState::Partial } else { SourceState::Exact })
    }

    /// Why it is worse than exact, as far as that is known.
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

    /// A rank was cleared. What was not taken, or is in doubt, does not matter any more once all ranks were cleared since.
    pub(super) fn rank_cleared(&mut self, rank: DpRank) {
        self.uncleared.remove(&rank);
        if self.uncleared.is_empty() {
            self.nothing_held();
        }
    }

    /// It holds nothing.
    pub(super) fn nothing_held(&mut self) {
        self.not_taken_before = self.counts.not_taken();
        self.doubtful_before = self.counts.doubtful;
        self.reasons.clear();
    }

    /// Something was not taken, or is in doubt: any of its ranks may be concerned.
    pub(super) fn doubt_ranks(&mut self) {
        self.uncleared = self.ranks.keys().copied().collect();
    }

    /// As sources are consolidated.
    pub(super) const fn consolidated(&self, number: SourceNumber) -> ConsolidatedSource {
        ConsolidatedSource { number, copy_mode: self.copy_mode, naming: self.naming }
    }
}

/// Removals to publish for a rank at which a source no longer holds blocks.
#[derive(Debug)]
pub(super) struct Released {
    /// Its name.
    pub(super) source: String,
    pub(super) rank: DpRank,
    pub(super) changed: Consolidated,
}

impl Released {
    /// A rank that had no other source.
    pub(super) fn whole(source: String, rank: DpRank) -> Self {
        let events = vec![KvEvent::Cleared];
        Self { source, rank, changed: Consolidated { events, holdings: Vec::new() } }
    }
}

/// Removals to publish because sources no longer hold blocks.
#[derive(Debug, Default)]
pub(super) struct Gone {
    pub(super) released: Vec<Released>,
    /// What that decides; where a new incarnation begins, there is nothing to publish.
    pub(super) verdict: Option<Verdict>,
}

/// What comes of a batch.
#[derive(Debug)]
pub(super) struct Outcome {
    /// Its number among those of its source and rank, from 0.
    pub(super) id: u64,
    pub(super) refused: u64,
    pub(super) events: Vec<KvEvent>,
    /// What changes of the source's holdings.
    pub(super) holdings: Vec<HoldingChange>,
}
