/// Gauges and counters of a registry of block sets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct BlockSetStats {
    /// Sets that are exported.
    pub exports: u64,
    /// Sets that are imported.
    pub imports: u64,
    /// Sets that have ended, and whose transfers have not.
    pub quarantined: u64,
    /// Blocks of the sets that are imported, quarantined ones included.
    pub imported_blocks: u64,
    /// Owners whose fences are known.
    pub owners: u64,
    /// Transfers under way.
    pub transfers: u64,
    /// Sets ever refused because they are older than what is known.
    pub imports_fenced: u64,
    /// Transfers whose set ended before they did.
    pub transfers_ended_late: u64,
}
