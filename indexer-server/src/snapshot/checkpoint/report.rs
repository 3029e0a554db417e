use std::time::Duration;

/// Statistics of a checkpoint that is on disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Report {
    /// Number of written workers.
    pub workers: usize,
    /// Blocks, names and holes written.
    pub blocks: usize,
    /// Bytes of keys and values written since the start of the process.
    pub written_bytes: u64,
    /// Bytes on disk, of all checkpoints.
    pub disk_bytes: u64,
    /// Duration of the checkpoint.
    pub duration: Duration,
}
