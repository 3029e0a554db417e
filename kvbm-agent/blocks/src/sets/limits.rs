/// What one registry keeps at most.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct BlockSetLimits {
    /// Sets that are exported, quarantined ones included.
    pub exports_max: usize,
    /// Owners whose fences are known.
    pub owners_max: usize,
    /// Ids of one owner's incarnation, ended ones included: their fences are kept.
    pub owner_ids_max: usize,
    /// Blocks of all sets that are imported, quarantined ones included.
    pub imported_blocks_max: u64,
    /// Blocks that one handle names.
    pub handle_blocks_max: usize,
    /// Transfers under way.
    pub transfers_max: usize,
}

impl BlockSetLimits {
    /// For workers of a large cluster: a handle costs about 40 bytes a block, an owner a few hundred.
    pub const DEFAULT: Self = Self {
        exports_max: 64,
        owners_max: 4_096,
        owner_ids_max: 256,
        imported_blocks_max: 1 << 30,
        handle_blocks_max: 65_536,
        transfers_max: 65_536,
    };
}

impl Default for BlockSetLimits {
    fn default() -> Self {
        Self::DEFAULT
    }
}
