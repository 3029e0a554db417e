use kvasir_proto::convert::WorkerAddress;
use std::collections::BTreeMap;
use std::path::PathBuf;

/// Folder of the journal of an agent's `engine-pool`, in the folder of the agent's own.
pub const POOL_FOLDER: &str = "pool";

/// Where a journal is on disk, and whose it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DiskConfig {
    /// Folder of the agent's own, on a local disk.
    pub folder: PathBuf,
    /// The worker that holds the blocks. A folder of another is refused.
    pub address: WorkerAddress,
    /// Tokens per block. What was written under another size does not count.
    pub block_size: u32,
    /// Names of numbered LoRA adapters, by which blocks were hashed. What was written under others does not count.
    pub lora_names: BTreeMap<u64, String>,
    /// Whether its sources are consolidated. Then the holdings of each source are written, too. A folder that was written with
    /// the other setting is not used.
    pub is_consolidated: bool,
}
