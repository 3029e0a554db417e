/// Limits of one registry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct BlockSetLimits {
    /// Maximum exported sets, including quarantined ones.
    pub exports_max: usize,
    /// Maximum owners whose fences are stored.
    pub owners_max: usize,
    /// Maximum ids of one owner's incarnation, including ended ones: their fences are kept.
    pub owner_ids_max: usize,
    /// Maximum blocks of all imported sets, including quarantined ones.
    pub imported_blocks_max: u64,
    /// Maximum blocks of one handle.
    pub handle_blocks_max: usize,
    /// Maximum running transfers.
    pub transfers_max: usize,
}

impl BlockSetLimits {
    /// Sized for workers of a large cluster: a handle takes about 40 bytes per block, an owner a few hundred bytes.
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
