/// Gauges and counters of a pool. The gauges `free` to `withdrawn` add up to `blocks`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PoolStats {
    /// Number of blocks in the pool.
    pub blocks: u64,
    /// Free slots.
    pub free: u64,
    /// Slots that an owner is filling.
    pub mutable: u64,
    /// Slots that a transfer may write.
    pub quarantined: u64,
    /// Registered blocks in use.
    pub active: u64,
    /// Registered blocks that are not in use.
    pub inactive: u64,
    /// Duplicates: second blocks with the same content.
    pub duplicates: u64,
    /// Blocks that were withdrawn while in use.
    pub withdrawn: u64,
    /// Current pins.
    pub pins: u64,
    /// Quarantined slots that are never freed: the handle was dropped before the transfer had stopped.
    pub abandoned: u64,
    /// Blocks allocated since the start.
    pub allocations: u64,
    /// Allocation requests that were refused.
    pub allocations_refused: u64,
    /// Blocks evicted since the start.
    pub evictions: u64,
    /// Blocks registered since the start, without duplicates.
    pub registrations: u64,
    /// Duplicates that kept their slots.
    pub duplicates_allowed: u64,
    /// Duplicates whose slots were freed immediately.
    pub duplicates_rejected: u64,
    /// Registrations refused because of contradicting hashes.
    pub conflicts: u64,
    /// Hashes looked up since the start.
    pub match_requests: u64,
    /// Hashes found since the start.
    pub match_hits: u64,
    /// Inactive blocks that were used again.
    pub resurrections: u64,
    /// Blocks withdrawn because their bytes are wrong.
    pub withdrawals: u64,
    /// Pins that expired.
    pub pins_expired: u64,
}
