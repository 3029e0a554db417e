/// Number of batches by outcome.
///
/// Every received batch is `applied`, `duplicate`, `stale`, or still buffered. `lost` counts the numbers
/// without an applied batch, whether a batch was seen or not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct OutcomeCounts {
    /// Emitted to be applied.
    pub applied: u64,
    /// A copy of a batch that the cursor covers or that will be fetched again.
    pub duplicate: u64,
    /// A batch of an earlier incarnation, connection or round, or with an implausible number.
    pub stale: u64,
    /// Announced, but not obtainable.
    pub lost: u64,
}

impl OutcomeCounts {
    /// Received batches with a final outcome.
    #[must_use]
    pub const fn settled(&self) -> u64 {
        self.applied + self.duplicate + self.stale
    }
}
