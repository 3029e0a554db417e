/// Gauges and counters of a registry of block sets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct BlockSetStats {
    /// Live exported sets.
    pub exports: u64,
    /// Live imported sets.
    pub imports: u64,
    /// Ended sets with running transfers.
    pub quarantined: u64,
    /// Blocks of imported sets, including quarantined ones.
    pub imported_blocks: u64,
    /// Owners whose fences are stored.
    pub owners: u64,
    /// Running transfers.
    pub transfers: u64,
    /// Sets refused since the start because a newer fence was known.
    pub imports_fenced: u64,
    /// Transfers that ended after their set.
    pub transfers_ended_late: u64,
}
