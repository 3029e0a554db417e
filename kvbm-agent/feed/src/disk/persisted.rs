use crate::consolidate::{Holding, HoldingChange};
use kvasir_proto::convert::KnownName;
use kvasir_proto::types::{
    CopyMode, Cursor, DpRank, Incarnation, Learned, NameChange, SourceState, SourceStatus,
};
use std::sync::Arc;

/// What a source is, and so how it proves that its engine survived.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SourceKind {
    /// An engine's own publisher: its replay has the cursor's batch, or not.
    Relay,
    /// A publisher on the agent's port: it states its incarnation.
    Ingest,
}

/// Where a source is after a batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourcePosition {
    /// The batch.
    pub cursor: Cursor,
    /// What the engine has shown of itself.
    pub learned: Arc<Learned>,
    /// New meanings of names, in order.
    pub names: Vec<NameChange>,
    /// What of the batch the agent's stream does not show.
    pub flaws: Flaws,
}

impl From<Cursor> for SourcePosition {
    fn from(cursor: Cursor) -> Self {
        Self { cursor, learned: Arc::default(), names: Vec::new(), flaws: Flaws::default() }
    }
}

/// What an agent's stream does not show of a source. Each lasts until a clear of all that the source holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Flaws {
    /// The source may hold less than the stream shows: events of this incarnation were lost for good, or are in doubt.
    pub has_lost: bool,
    /// The source may hold more than the stream shows: blocks were not taken.
    pub lacks_blocks: bool,
}

impl Flaws {
    /// Both together.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self {
            has_lost: self.has_lost || other.has_lost,
            lacks_blocks: self.lacks_blocks || other.lacks_blocks,
        }
    }
}

/// A source, as of its last batch that was taken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PersistedSource {
    /// Its name.
    pub name: String,
    /// What it is.
    pub kind: SourceKind,
    /// How to count repeated stores of a block.
    pub copy_mode: CopyMode,
    /// Its last batch that was taken.
    pub cursor: Cursor,
    /// What the agent's stream does not show of it.
    pub flaws: Flaws,
    /// Incarnations that were over, the latest last, at most
    /// [`TOLD_PAST_INCARNATIONS_MAX`](kvasir_proto::limits::TOLD_PAST_INCARNATIONS_MAX).
    pub past: Vec<Incarnation>,
    /// What the engine has shown of itself.
    pub learned: Arc<Learned>,
    /// Ranks that it may hold something at.
    pub ranks: Vec<DpRank>,
}

impl PersistedSource {
    /// What to resume it from. What was lost was dropped then, and is not dropped once more.
    #[must_use]
    pub fn status(&self) -> SourceStatus {
        SourceStatus {
            state: SourceState::CatchingUp,
            applied: Some(self.cursor),
            past: self.past.as_slice().into(),
            learned: Arc::clone(&self.learned),
            ..SourceStatus::default()
        }
    }
}

/// What names of a source mean besides their tokens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PersistedNames {
    /// Name of the source.
    pub source: String,
    /// The block names, at least one.
    pub names: Vec<KnownName>,
}

/// The holdings of a consolidated source at one rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PersistedHoldings {
    /// Its name.
    pub source: String,
    /// The rank.
    pub rank: DpRank,
    /// Its holdings there, at least one.
    pub holdings: Vec<Holding>,
}

/// The sources of an earlier run of the agent, as read from disk.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PersistedSources {
    /// Their positions.
    pub positions: Vec<PersistedSource>,
    /// What their names mean.
    pub names: Vec<PersistedNames>,
    /// Their holdings; empty unless they are consolidated. A source without a position may have holdings.
    pub holdings: Vec<PersistedHoldings>,
}

/// What becomes of a source's place on disk.
#[derive(Debug, Clone, Copy)]
pub enum SourceChange<'a> {
    /// It stays as it is.
    None,
    /// This is its position now.
    Put(&'a PersistedSource),
    /// The same, and what its names meant is dropped with the blocks.
    PutEmpty(&'a PersistedSource),
    /// It is dropped.
    Forget(&'a str),
}

/// New meanings of a source's names.
#[derive(Debug, Clone, Copy, Default)]
pub struct NamesChange<'a> {
    /// Name of the source.
    pub source: &'a str,
    /// The changes, in order.
    pub changes: &'a [NameChange],
}

/// Changes of a source's holdings at one rank.
#[derive(Debug, Clone, Copy)]
pub struct HoldingsChange<'a> {
    /// Its name.
    pub source: &'a str,
    /// The rank.
    pub rank: DpRank,
    /// The changes, in order.
    pub changes: &'a [HoldingChange],
}

/// What is written in the same write as batches.
#[derive(Debug, Clone, Copy)]
pub struct DiskChange<'a> {
    /// The position of the source that published them.
    pub position: SourceChange<'a>,
    /// Changes of the holdings of consolidated sources.
    pub holdings: &'a [HoldingsChange<'a>],
    /// New meanings of the source's names.
    pub names: NamesChange<'a>,
}

impl DiskChange<'_> {
    /// Whether nothing is to be written.
    #[must_use]
    pub fn is_none(&self) -> bool {
        matches!(self.position, SourceChange::None)
            && self.holdings.iter().all(|holdings| holdings.changes.is_empty())
            && self.names.changes.is_empty()
    }
}

impl<'a> From<SourceChange<'a>> for DiskChange<'a> {
    fn from(position: SourceChange<'a>) -> Self {
        Self { position, holdings: &[], names: NamesChange::default() }
    }
}
