use std::time::Duration;

/// Bounds of the service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ServiceConfig {
    /// Most ranges and dumps under way, those that wait included.
    pub streams_max: usize,
    /// Most readers of loads at a time.
    pub watchers_max: usize,
    /// A client that takes nothing for this long is cut off.
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

/// Messages of one stream that wait to be taken.
pub(super) const PARTS_QUEUED_MAX: usize = 2;
/// Answers of one stream of loads that wait to be taken: what is newer waits until there is a place.
pub(super) const LOADS_QUEUED_MAX: usize = 1;
/// Batches taken from the journal at a time.
pub(super) const READ_BATCHES: usize = 64;
/// Records read under one hold of the journal's lock.
pub(super) const STEP_RECORDS: usize = 256;
/// Largest request, in bytes: names and numbers only.
pub(super) const REQUEST_BYTES_MAX: usize = 16 << 10;
