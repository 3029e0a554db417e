use crate::consolidate::{Holding, HoldingChange};
use kvasir_proto::convert::KnownName;
use kvasir_proto::types::{
    CopyMode, Cursor, DpRank, Incarnation, Learned, NameChange, SourceState, SourceStatus,
};
use std::sync::Arc;

/// Kind of a source. It decides how the source proves that its engine survived.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SourceKind {
    /// An engine's own publisher. Its replay has the cursor's batch, or not.
    Relay,
    /// A publisher on the agent's port. It reports its incarnation.
    Ingest,
}

/// State of a source after a batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourcePosition {
    /// Cursor of the batch.
    pub cursor: Cursor,
    /// Properties learned from the engine's events.
    pub learned: Arc<Learned>,
    /// New meanings of names, in order.
    pub names: Vec<NameChange>,
    /// Differences between the batch and the agent's stream.
    pub flaws: Flaws,
}

impl From<Cursor> for SourcePosition {
    fn from(cursor: Cursor) -> Self {
        Self { cursor, learned: Arc::default(), names: Vec::new(), flaws: Flaws::default() }
    }
}

/// Differences between a source and the agent's stream. Each lasts until a clear of all the source's blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Flaws {
    /// The source may hold fewer blocks than the stream shows: events of this incarnation were lost permanently, or are
    /// in doubt.
    pub has_lost: bool,
    /// The source may hold more blocks than the stream shows: some blocks were refused.
    pub lacks_blocks: bool,
}

impl Flaws {
    /// Combines both.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self {
            has_lost: self.has_lost || other.has_lost,
            lacks_blocks: self.lacks_blocks || other.lacks_blocks,
        }
    }
}

/// A source, as of its last applied batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PersistedSource {
    /// Name of the source.
    pub name: String,
    /// Kind of the source.
    pub kind: SourceKind,
    /// How to count repeated stores of a block.
    pub copy_mode: CopyMode,
    /// Cursor of the last applied batch.
    pub cursor: Cursor,
    /// Differences between the source and the agent's stream.
    pub flaws: Flaws,
    /// Ended incarnations, the latest last, at most
    /// [`TOLD_PAST_INCARNATIONS_MAX`](kvasir_proto::limits::TOLD_PAST_INCARNATIONS_MAX).
    pub past: Vec<Incarnation>,
    /// Properties learned from the engine's events.
    pub learned: Arc<Learned>,
    /// Ranks at which the source may hold blocks.
    pub ranks: Vec<DpRank>,
}

impl PersistedSource {
    /// Status to resume the source from. Blocks dropped after an earlier loss are not dropped again.
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

/// Meanings of a source's names besides their tokens.
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
    /// Name of the source.
    pub source: String,
    /// The rank.
    pub rank: DpRank,
    /// Holdings at the rank, at least one.
    pub holdings: Vec<Holding>,
}

/// The sources of an earlier run of the agent, as read from disk.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PersistedSources {
    /// Positions of the sources.
    pub positions: Vec<PersistedSource>,
    /// Meanings of the sources' names.
    pub names: Vec<PersistedNames>,
    /// Holdings of the sources; empty unless they are consolidated. A source without a position may have holdings.
    pub holdings: Vec<PersistedHoldings>,
}

/// Change of a source's position on disk.
#[derive(Debug, Clone, Copy)]
pub enum SourceChange<'a> {
    /// Keeps the position.
    None,
    /// Writes the position.
    Put(&'a PersistedSource),
    /// Writes the position. Drops the meanings of the source's names, because its blocks are dropped.
    PutEmpty(&'a PersistedSource),
    /// Removes the position.
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
    /// Name of the source.
    pub source: &'a str,
    /// The rank.
    pub rank: DpRank,
    /// The changes, in order.
    pub changes: &'a [HoldingChange],
}

/// Changes that are written atomically with batches.
#[derive(Debug, Clone, Copy)]
pub struct DiskChange<'a> {
    /// Position of the source that published the batches.
    pub position: SourceChange<'a>,
    /// Changes of the holdings of consolidated sources.
    pub holdings: &'a [HoldingsChange<'a>],
    /// New meanings of the source's names.
    pub names: NamesChange<'a>,
}

impl DiskChange<'_> {
    /// Whether the change is empty.
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
