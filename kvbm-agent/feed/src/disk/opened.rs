use super::{Disk, NewIncarnation, PersistedSource};
use crate::journal::Journal;

/// A journal on disk that was opened.
#[derive(Debug)]
pub struct Opened {
    /// It takes what follows.
    pub disk: Disk,
    /// What was there, or why it does not count.
    pub restored: Result<Restored, NewIncarnation>,
}

/// An incarnation that may go on.
#[derive(Debug)]
pub struct Restored {
    /// What was said and is held.
    pub journal: Journal,
    /// Where its sources stood.
    pub sources: Vec<PersistedSource>,
}
