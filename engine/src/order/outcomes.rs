/// Outcomes of batches, summed.
///
/// Every batch taken in is one of `applied`, `duplicate` and `stale`, or is
/// buffered. `lost` counts numbers of which no batch was applied, whether one was seen or not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct OutcomeCounts {
    /// Handed out to be applied.
    pub applied: u64,
    /// A copy of a batch that the cursor covers or that is fetched again.
    pub duplicate: u64,
    /// Of an earlier incarnation, connection or round, or with a number that cannot be one of the source's.
    pub stale: u64,
    /// Announced, but not obtainable.
    pub lost: u64,
}

impl OutcomeCounts {
    /// Batches that came in and are settled.
    #[must_use]
    pub const fn settled(&self) -> u64 {
        self.applied + self.duplicate + self.stale
    }
}
