use super::{NewIncarnation, PersistedSources};
use crate::journal::Journal;

/// A journal on disk that was opened.
#[derive(Debug)]
pub struct OpenedWith<D> {
    /// It takes what follows.
    pub disk: D,
    /// What was there, or why it does not count.
    pub restored: Result<Restored, NewIncarnation>,
}

/// An incarnation that may continue.
#[derive(Debug)]
pub struct Restored {
    /// What was published and is held.
    pub journal: Journal,
    /// Its sources as read from disk.
    pub sources: PersistedSources,
}
