use kvasir_proto::shard::ShardPlace;
use std::path::PathBuf;

/// Bytes collected before a write to disk: several small images together, or a part of one large complete image.
pub const BATCH_BYTES_MAX: usize = 32 << 20;
/// Bytes of small images that are synced to disk together.
pub(super) const GROUP_BYTES: usize = 4 << 20;
/// Maximum number of blocks, names and holes in one piece of a worker that is read.
pub const PIECE_BLOCKS_MAX: usize = 16_384;
/// Maximum bytes in one chunk of an export.
pub const EXPORT_CHUNK_BYTES_MAX: usize = 1 << 20;
/// Largest value in an export. A larger length is refused before memory is allocated.
pub(super) const EXPORT_VALUE_BYTES_MAX: u32 = 16 << 20;
/// Maximum number of damaged folders that are kept aside.
pub const SET_ASIDE_MAX: usize = 3;

/// Where snapshots are stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SnapshotConfig {
    /// The server's own folder, which may be a mount. The database is in its subfolder `db`.
    pub folder: PathBuf,
    /// The shard whose workers are stored; `None` if there is only one server. A folder of another shard is refused.
    /// The shard's buckets do not matter, because they move.
    pub shard: Option<ShardPlace>,
    /// Whether to move a damaged database to `db.corrupt-<n>` and start an empty one, instead of refusing to open.
    pub set_aside: bool,
    /// Bytes of one write to the database. The changes of one worker may exceed it.
    pub batch_bytes_max: usize,
    /// Whether RocksDB compacts tables immediately after opening. Otherwise
    /// [`begin_compacting`](super::SnapshotStore::begin_compacting) starts it, because compaction slows a restore.
    pub compacts: bool,
}

impl SnapshotConfig {
    /// Default settings for a folder.
    #[must_use]
    pub const fn new(folder: PathBuf) -> Self {
        let batch_bytes_max = BATCH_BYTES_MAX;
        Self { folder, shard: None, set_aside: true, batch_bytes_max, compacts: true }
    }
}
