use kvasir_proto::types::CopyMode;

/// Limits of one journal, and how it counts repeated stores of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct JournalConfig {
    /// How repeated stores of a held block are counted.
    pub copy_mode: CopyMode,
    /// Maximum number of retained batches, at least 1.
    pub batches_max: usize,
    /// Maximum memory of retained batches, in bytes. The newest batch is always retained.
    pub bytes_max: usize,
    /// Maximum number of held names over all ranks. Further names are refused, and dumps report it.
    pub held_blocks_max: usize,
}

impl JournalConfig {
    /// Two minutes of a busy engine: 8,192 prompt tokens in each of 20 steps a second, in blocks of 16. Each block
    /// evicts another, with one event per removal. That makes 1,200 batches and 44 MB a minute
    /// (`the_default_keeps_a_minute_of_a_busy_engine` prints it).
    pub const DEFAULT: Self = Self {
        copy_mode: CopyMode::Set,
        batches_max: 16_384,
        bytes_max: 96 << 20,
        held_blocks_max: 8 << 20,
    };
}

impl Default for JournalConfig {
    fn default() -> Self {
        Self::DEFAULT
    }
}
