use kvasir_proto::types::{CopyMode, Cursor, DpRank, Incarnation, SourceState, SourceStatus};

/// What a source is, and so how it proves that its engine survived.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SourceKind {
    /// An engine's own publisher: its replay has the cursor's batch, or not.
    Relay,
    /// A publisher on the agent's port: it states its incarnation.
    Ingest,
}

/// Where a source is after a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SourcePosition {
    /// The batch.
    pub cursor: Cursor,
    /// The engine's main KV-cache group; none until the engine has stated one.
    pub main_group: Option<u32>,
}

impl From<Cursor> for SourcePosition {
    fn from(cursor: Cursor) -> Self {
        Self { cursor, main_group: None }
    }
}

/// A source, as of its last batch that was taken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PersistedSource {
    /// Its name.
    pub name: String,
    /// What it is.
    pub kind: SourceKind,
    /// How its second announcements are read.
    pub copy_mode: CopyMode,
    /// Its last batch that was taken.
    pub cursor: Cursor,
    /// Whether events of this incarnation were lost for good.
    pub has_lost: bool,
    /// Whether blocks of it were not taken.
    pub lacks_blocks: bool,
    /// Incarnations that were over, the latest last, at most
    /// [`TOLD_PAST_INCARNATIONS_MAX`](kvasir_proto::limits::TOLD_PAST_INCARNATIONS_MAX).
    pub past: Vec<Incarnation>,
    /// The engine's main KV-cache group; none as long as it has stated none.
    pub main_group: Option<u32>,
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
            main_group: self.main_group,
            ..SourceStatus::default()
        }
    }
}

/// What becomes of a source's place on disk.
#[derive(Debug, Clone, Copy)]
pub enum SourceChange<'a> {
    /// It stays as it is.
    None,
    /// This is its position now.
    Put(&'a PersistedSource),
    /// It is dropped.
    Forget(&'a str),
}
