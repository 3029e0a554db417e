use super::Verdict;
use prometheus_client::metrics::histogram::Histogram;
use std::sync::Arc;

/// Metrics of a journal on disk; shared by clones.
#[derive(Debug, Clone)]
pub struct DiskFigures {
    /// Duration of write-ahead writes, in seconds.
    pub write_seconds: Histogram,
}

/// State of a journal on disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DiskStatus {
    /// Why writing has stopped, so that the next start begins a new incarnation; `None` while writes succeed.
    pub error: Option<Arc<str>>,
    /// Whether the incarnation on disk continued.
    pub verdict: Verdict,
    /// Bytes of keys and values written: batches and sources.
    pub written_bytes: u64,
    /// Bytes of batches that are in no image yet.
    pub log_bytes: u64,
    /// Number of completed images.
    pub images: u64,
    /// Size of the current image in bytes.
    pub image_bytes: u64,
    /// Names restored when the agent started.
    pub restored_blocks: u64,
    /// Batches read when the agent started.
    pub restored_batches: u64,
}
