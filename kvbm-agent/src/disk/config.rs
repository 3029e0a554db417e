use kvasir_proto::convert::WorkerAddress;
use std::path::PathBuf;

/// Most bytes of batches that are kept because no image could be made since: then the disk is given up.
pub const LOG_BYTES_MAX: u64 = 4 << 30;
/// What a batch costs besides its value.
pub(super) const BATCH_BYTES: u64 = 64;
/// Records in one value of an image.
pub(super) const CHUNK_RECORDS: usize = 1_024;

/// Where a journal is kept, and whose it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DiskConfig {
    /// Folder of the agent's own, on a local disk.
    pub folder: PathBuf,
    /// The worker that holds the blocks. A folder of another is refused.
    pub address: WorkerAddress,
    /// Tokens per block. What was written under another size does not count.
    pub block_size: u32,
}
