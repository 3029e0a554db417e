use kvasir_proto::convert::WorkerAddress;
use std::collections::BTreeMap;
use std::path::PathBuf;

/// Folder for the journal of an agent's `engine-pool`, inside the agent's own folder.
pub const POOL_FOLDER: &str = "pool";

/// Location and owner of a journal on disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DiskConfig {
    /// The agent's own folder, on a local disk.
    pub folder: PathBuf,
    /// Worker that holds the blocks. Another worker's folder is refused.
    pub address: WorkerAddress,
    /// Tokens per block. A journal with another block size is not resumed.
    pub block_size: u32,
    /// Names of numbered LoRA adapters, on which block hashes depend. A journal with other names is not resumed.
    pub lora_names: BTreeMap<u64, String>,
    /// Whether the journal's sources are consolidated. If so, the holdings of each source are written, too. A journal
    /// with the other setting is not resumed.
    pub is_consolidated: bool,
}
