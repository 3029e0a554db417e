/// Outcome of a block operation; each operation has exactly one. Operations that the normaliser ignores never reach the
/// index; the normaliser counts them by reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum BlockOutcome {
    /// The index changed.
    Applied,
    /// No change: removal of an unknown name, or a second store in set mode.
    Noop,
    /// The index rejected the operation: a limit was reached.
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
    /// No change.
    pub noop: u64,
    /// The index rejected the operation.
    pub rejected: u64,
    /// The name already means another block: counted as a copy of that block.
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

    /// Adds another count to this one.
    pub const fn merge(&mut self, other: Self) {
        self.applied += other.applied;
        self.noop += other.noop;
        self.rejected += other.rejected;
        self.conflict += other.conflict;
        self.shed += other.shed;
    }

    /// Number of all counted operations.
    #[must_use]
    pub const fn total(&self) -> u64 {
        self.applied + self.noop + self.rejected + self.conflict + self.shed
    }
}

/// Outcome of a batch; each batch has exactly one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum BatchOutcome {
    /// The batch's events were passed to the index.
    Applied,
    /// The cursor already covers the batch.
    Duplicate,
    /// The batch belongs to an earlier incarnation of the source.
    Stale,
    /// The payload of the batch cannot be read.
    Undecodable,
    /// The batch exists, but no source could supply it.
    Lost,
    /// The batch has a topic that the worker does not subscribe to.
    OtherTopic,
}
