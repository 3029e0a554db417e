use std::time::Duration;

/// A checkpoint that is on disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Report {
    /// Workers of which something was written.
    pub workers: usize,
    /// Blocks, names and holes written.
    pub blocks: usize,
    /// Bytes of keys and values written since start.
    pub written_bytes: u64,
    /// Bytes on disk, of all checkpoints.
    pub disk_bytes: u64,
    /// How long it took.
    pub duration: Duration,
}
