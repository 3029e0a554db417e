/// The outcome of one block operation; each has exactly one. The normaliser counts ignored operations, with
/// their reason: they never reach the index.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum BlockOutcome {
    /// The index changed.
    Applied,
    /// Nothing changed: removal of a name that is not held, or a second store in set mode.
    Noop,
    /// The index refused it: a limit was reached.
    Rejected,
    /// The name already means another block: counted as a copy of that block.
    Conflict,
    /// Dropped to stay within the byte budget.
    Shed,
}

/// Number of block operations by [`BlockOutcome`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct BlockCounts {
    /// The index changed.
    pub applied: u64,
    /// Nothing changed.
    pub noop: u64,
    /// The index refused it.
    pub rejected: u64,
    /// Announced as another block than the name already means.
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

    /// Adds other counts to these.
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

/// The outcome of one batch; each has exactly one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum BatchOutcome {
    /// Its events went to the index.
    Applied,
    /// The cursor already covers it.
    Duplicate,
    /// It belongs to an earlier incarnation of the source.
    Stale,
    /// Its payload cannot be read.
    Undecodable,
    /// It is known to exist, and nobody could supply it.
    Lost,
    /// It is of a topic that the worker does not take.
    OtherTopic,
}
