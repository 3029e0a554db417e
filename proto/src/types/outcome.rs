/// What became of one block operation. Exactly one outcome each; ignored operations are counted by
/// the normaliser, with their reason, and never reach the index.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum BlockOutcome {
    /// The index changed.
    Applied,
    /// Nothing to change: removal of a name that is not held, second store in set mode.
    Noop,
    /// Refused by the index: a limit was reached.
    Rejected,
    /// Applied, and an older binding of the name to other content was dropped for it.
    Conflict,
    /// Dropped to stay within the byte budget.
    Shed,
}

/// Sums of [`BlockOutcome`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct BlockCounts {
    /// The index changed.
    pub applied: u64,
    /// Nothing to change.
    pub noop: u64,
    /// Refused by the index.
    pub rejected: u64,
    /// Applied over an older binding.
    pub conflict: u64,
    /// Dropped to stay within the byte budget.
    pub shed: u64,
}

impl BlockCounts {
    /// Counts one operation.
    pub const fn add(&mut self, outcome: BlockOutcome) {
        match outcome {
            BlockOutcome::Applied => self.applied += 1,
            BlockOutcome::Noop => self.noop += 1,
            BlockOutcome::Rejected => self.rejected += 1,
            BlockOutcome::Conflict => self.conflict += 1,
            BlockOutcome::Shed => self.shed += 1,
        }
    }

    /// Adds other sums to these.
    pub const fn merge(&mut self, other: Self) {
        self.applied += other.applied;
        self.noop += other.noop;
        self.rejected += other.rejected;
        self.conflict += other.conflict;
        self.shed += other.shed;
    }

    /// All operations counted.
    #[must_use]
    pub const fn total(&self) -> u64 {
        self.applied + self.noop + self.rejected + self.conflict + self.shed
    }
}

/// What became of one batch. Exactly one outcome each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum BatchOutcome {
    /// Its events went to the index.
    Applied,
    /// The cursor already covers it.
    Duplicate,
    /// It belongs to an earlier life of the source.
    Stale,
    /// Its payload cannot be read.
    Undecodable,
    /// It was announced and could not be had.
    Lost,
}
