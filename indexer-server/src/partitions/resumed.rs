use super::IndexedSource;
use kvasir_proto::convert::KnownName;
use kvasir_proto::types::{CopyMode, SourceStatus};

/// A worker that a checkpoint or a sibling has brought back into the index.
#[derive(Debug, Default)]
pub struct ResumedWorker {
    /// The worker's sources.
    pub sources: Vec<ResumedSource>,
    /// Blocks of the worker, parked blocks included.
    pub blocks: u64,
}

/// One source of a resumed worker.
#[derive(Debug, Clone)]
pub struct ResumedSource {
    /// The source's name.
    pub name: String,
    /// How a second announcement of a block counts.
    pub copy_mode: CopyMode,
    /// The source in the index.
    pub source: IndexedSource,
    /// The source's status: catching up, or worse.
    pub status: SourceStatus,
    /// Meanings of the source's block names besides the tokens.
    pub names: Vec<KnownName>,
}
