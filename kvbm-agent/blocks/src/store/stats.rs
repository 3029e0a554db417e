/// Gauges and counters of a pool. The gauges `free` to `withdrawn` sum up to all blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PoolStats {
    /// Blocks of the pool.
    pub blocks: u64,
    /// Slots that hold nothing.
    pub free: u64,
    /// Slots that one owner fills.
    pub mutable: u64,
    /// Slots that a transfer may write.
    pub quarantined: u64,
    /// Registered blocks in use.
    pub active: u64,
    /// Registered blocks in no use.
    pub inactive: u64,
    /// Second blocks of the same content.
    pub duplicates: u64,
    /// Blocks that were withdrawn while in use.
    pub withdrawn: u64,
    /// Pins.
    pub pins: u64,
    /// Quarantined slots that nobody will ever free: their transfer was given up before it had stopped.
    pub abandoned: u64,
    /// Blocks ever given to owners.
    pub allocations: u64,
    /// Requests for blocks that were refused.
    pub allocations_refused: u64,
    /// Blocks ever evicted.
    pub evictions: u64,
    /// Blocks ever registered, duplicates excepted.
    pub registrations: u64,
    /// Second blocks that kept their slots.
    pub duplicates_allowed: u64,
    /// Second blocks whose slots were free at once.
    pub duplicates_rejected: u64,
    /// Registrations refused because hashes contradict.
    pub conflicts: u64,
    /// Hashes ever looked for.
    pub match_requests: u64,
    /// Hashes ever found.
    pub match_hits: u64,
    /// Inactive blocks that came into use again.
    pub resurrections: u64,
    /// Blocks withdrawn because their bytes are wrong.
    pub withdrawals: u64,
    /// Pins that ended because their time was over.
    pub pins_expired: u64,
}
