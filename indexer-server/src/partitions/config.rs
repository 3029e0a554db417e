use kvasir_process::shares::LargestShare;
use std::num::NonZeroUsize;

/// Most shards of one process.
pub const SHARDS_MAX: usize = 64;

/// Configuration of the index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IndexConfig {
    /// Shards of every partition, each with a writer thread; [`SHARDS_MAX`] at most.
    pub shards: NonZeroUsize,
    /// Most bytes of all shards together, if there is a limit.
    pub bytes_max: Option<usize>,
    /// Most bytes of what cannot be shed (workers, sources, ranks and partitions), if there is a limit.
    pub fixed_bytes_max: Option<usize>,
    /// Most of the limits on models, workers, sockets and registrations that one tenant may take.
    pub tenant_share: LargestShare,
}

impl IndexConfig {
    /// So many shards, and no limits.
    #[must_use]
    pub const fn new(shards: NonZeroUsize) -> Self {
        Self { shards, bytes_max: None, fixed_bytes_max: None, tenant_share: LargestShare::ALL }
    }
}
