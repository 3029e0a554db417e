use kvasir_process::shares::LargestShare;
use std::num::NonZeroUsize;

/// Maximum number of shards of one process.
pub const SHARDS_MAX: usize = 64;

/// Configuration of the index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IndexConfig {
    /// Shards of every partition, each with a writer thread. At most [`SHARDS_MAX`].
    pub shards: NonZeroUsize,
    /// Maximum bytes of all shards together. `None`: unlimited.
    pub bytes_max: Option<usize>,
    /// Maximum bytes that eviction cannot free (workers, sources, ranks and partitions). `None`: unlimited.
    pub fixed_bytes_max: Option<usize>,
    /// Largest share of the limits on models, workers, sockets and registrations for one tenant.
    pub tenant_share: LargestShare,
}

impl IndexConfig {
    /// A configuration with this many shards and no limits.
    #[must_use]
    pub const fn new(shards: NonZeroUsize) -> Self {
        Self { shards, bytes_max: None, fixed_bytes_max: None, tenant_share: LargestShare::ALL }
    }
}
