use super::partition::{NameError, check_required};
use std::fmt;
use std::sync::Arc;

/// Label of a worker: the HTTP address of its engine.
pub const ADDRESS_LABEL: &str = "http";

/// Name of a worker: 1–256 bytes without control characters, unique within its partition.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WorkerId(Arc<str>);

impl WorkerId {
    /// Creates a worker id from a valid name.
    ///
    /// # Errors
    /// If `id` is empty, too long, or has a control character.
    pub fn new(id: &str) -> Result<Self, NameError> {
        check_required("worker_id", id)?;
        Ok(Self(id.into()))
    }

    /// The name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for WorkerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Data-parallel rank within a worker.
pub type DpRank = u32;

/// One rank of one worker: the unit that caches blocks.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WorkerKey {
    /// The worker.
    pub worker: WorkerId,
    /// The worker's rank.
    pub rank: DpRank,
}

impl fmt::Display for WorkerKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}#{}", self.worker, self.rank)
    }
}
