use kvasir_proto::types::CopyMode;

/// Bounds of one journal, and how it reads second announcements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct JournalConfig {
    /// How second announcements of a held block are read.
    pub copy_mode: CopyMode,
    /// Most batches retained, at least 1.
    pub batches_max: usize,
    /// Most bytes of memory that retained batches take; the newest batch is retained whatever it takes.
    pub bytes_max: usize,
    /// Most names held, over all ranks; further ones are not taken, and dumps report it.
    pub held_blocks_max: usize,
}

impl JournalConfig {
    /// Two minutes of a busy engine: 8,192 prompt tokens in each of 20 steps a second, in blocks of 16,
    /// each of which evicts another, with an event for each removal, are 1,200 batches and 44 MB a
    /// minute (`the_default_keeps_a_minute_of_a_busy_engine` prints it).
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
