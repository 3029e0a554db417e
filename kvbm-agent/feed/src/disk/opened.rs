use super::{NewIncarnation, PersistedSources};
use crate::journal::Journal;

/// An opened journal on disk.
#[derive(Debug)]
pub struct OpenedWith<D> {
    /// The journal, ready for writes.
    pub disk: D,
    /// The restored incarnation, or why the journal is not resumed.
    pub restored: Result<Restored, NewIncarnation>,
}

/// An incarnation that may continue.
#[derive(Debug)]
pub struct Restored {
    /// Published batches and held blocks.
    pub journal: Journal,
    /// Sources of the journal, as read from disk.
    pub sources: PersistedSources,
}
