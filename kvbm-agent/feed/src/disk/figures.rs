use super::Verdict;
use prometheus_client::metrics::histogram::Histogram;
use std::sync::Arc;

/// What a journal on disk has done and cost; shared by clones.
#[derive(Debug, Clone)]
pub struct DiskFigures {
    /// How long writes ahead of the stream took, in seconds.
    pub write_seconds: Histogram,
}

/// State of a journal on disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DiskStatus {
    /// Why nothing is written any more, so that the next start begins a new incarnation; none while all is well.
    pub error: Option<Arc<str>>,
    /// Whether the incarnation on disk continued.
    pub verdict: Verdict,
    /// Bytes of keys and values written: batches and sources.
    pub written_bytes: u64,
    /// Bytes of batches that are in no image.
    pub log_bytes: u64,
    /// Images completed.
    pub images: u64,
    /// Bytes of the image that counts.
    pub image_bytes: u64,
    /// Names that were held when the agent came back.
    pub restored_blocks: u64,
    /// Batches that were read then.
    pub restored_batches: u64,
}
