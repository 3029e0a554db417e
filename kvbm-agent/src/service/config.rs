use std::time::Duration;

/// Limits of the services.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ServiceConfig {
    /// Maximum number of concurrent ranges and dumps, including waiting ones.
    pub streams_max: usize,
    /// Maximum number of concurrent readers of loads.
    pub watchers_max: usize,
    /// Time after which a client that takes no message is cut off.
    pub stall_timeout: Duration,
}

impl ServiceConfig {
    /// Room for the replicas of an index, each with a range and a dump, and for 256 routers.
    pub const DEFAULT: Self =
        Self { streams_max: 32, watchers_max: 256, stall_timeout: Duration::from_secs(30) };
}

impl Default for ServiceConfig {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// Maximum number of queued messages per stream.
pub(super) const PARTS_QUEUED_MAX: usize = 2;
/// Maximum number of queued answers per stream of loads. Newer loads wait until a slot is free.
pub(super) const LOADS_QUEUED_MAX: usize = 1;
/// Batches read from the journal per critical section.
pub(super) const READ_BATCHES: usize = 64;
/// Records read in one critical section of the journal's lock.
pub(super) const STEP_RECORDS: usize = 256;
/// Maximum size of a request in bytes. Requests have only names and numbers.
pub(super) const REQUEST_BYTES_MAX: usize = 16 << 10;
