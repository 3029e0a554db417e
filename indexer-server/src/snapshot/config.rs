use kvasir_proto::shard::ShardPlace;
use std::path::PathBuf;

/// Bytes after which what is being written goes to disk: several small images at once, or a part of
/// a large whole one.
pub const BATCH_BYTES_MAX: usize = 32 << 20;
/// Bytes of small images that are made durable together.
pub(super) const GROUP_BYTES: usize = 4 << 20;
/// Most blocks, names and holes in one piece of a worker that is read.
pub const PIECE_BLOCKS_MAX: usize = 16_384;
/// Most bytes in one chunk of an export.
pub const EXPORT_CHUNK_BYTES_MAX: usize = 1 << 20;
/// Largest value in an export; a larger length is refused before memory is allocated.
pub(super) const EXPORT_VALUE_BYTES_MAX: u32 = 16 << 20;
/// Limit of damaged folders that are set aside.
pub const SET_ASIDE_MAX: usize = 3;

/// Where snapshots are stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SnapshotConfig {
    /// Folder of the server's own; may be a mount. The database is in `db` within it.
    pub folder: PathBuf,
    /// Which shard's workers are in it; none if there is one server only. A folder of another shard is
    /// refused. Which buckets the shard owns does not matter: these move.
    pub shard: Option<ShardPlace>,
    /// Whether a damaged database is moved to `db.corrupt-<n>` and a new one begun, instead of
    /// refusing to open.
    pub set_aside: bool,
    /// Bytes of one write to the database, unless what changed of one worker is more.
    pub batch_bytes_max: usize,
    /// Whether RocksDB merges tables as soon as it is opened. Else it begins to when it is
    /// [told](super::SnapshotStore::begin_compacting): what it reads and writes for that takes time from a restore.
    pub compacts: bool,
}

impl SnapshotConfig {
    /// The usual settings for a folder.
    #[must_use]
    pub const fn new(folder: PathBuf) -> Self {
        let batch_bytes_max = BATCH_BYTES_MAX;
        Self { folder, shard: None, set_aside: true, batch_bytes_max, compacts: true }
    }
}
