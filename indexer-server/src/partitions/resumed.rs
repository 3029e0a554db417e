use super::IndexedSource;
use kvasir_proto::convert::KnownName;
use kvasir_proto::types::{CopyMode, SourceStatus};

/// A worker that is back in the index: a checkpoint has brought it, or a sibling.
#[derive(Debug, Default)]
pub struct ResumedWorker {
    /// Its sources.
    pub sources: Vec<ResumedSource>,
    /// Blocks that it holds, parked ones included.
    pub blocks: u64,
}

/// A source of it.
#[derive(Debug, Clone)]
pub struct ResumedSource {
    /// Its name.
    pub name: String,
    /// How second announcements are read.
    pub copy_mode: CopyMode,
    /// The source.
    pub source: IndexedSource,
    /// Where it stood: catching up, or worse.
    pub status: SourceStatus,
    /// What names of its blocks mean besides their tokens.
    pub names: Vec<KnownName>,
}
