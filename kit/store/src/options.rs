//! RocksDB options for databases, writes and reads.

use crate::Bounds;
use rocksdb::statistics::StatsLevel;
use rocksdb::{
    BlockBasedOptions, Cache, DBCompressionType, DBRecoveryMode, LogLevel, Options, ReadOptions,
    WriteOptions,
};

/// Size of a write buffer. At most two are in memory. Larger buffers cause fewer rewrites of tables.
const WRITE_BUFFER_BYTES: usize = 32 << 20;
const WRITE_BUFFERS: i32 = 2;
/// Size of the block cache. Blocks are read once, so the cache is only for the indexes of tables.
const BLOCK_CACHE_BYTES: usize = 8 << 20;
const BLOCK_BYTES: usize = 16 << 10;
const TABLE_BYTES: u64 = 64 << 20;
const LEVEL_BYTES: u64 = 4 * TABLE_BYTES;
const OPEN_FILES_MAX: i32 = 128;
/// Background jobs: one flushes, one compacts.
const BACKGROUND_JOBS: i32 = 2;
const LOG_BYTES_MAX: usize = 1 << 20;
const LOGS_RETAINED: usize = 2;
const MANIFEST_BYTES_MAX: usize = 4 << 20;
const MANIFEST_STEP_BYTES: usize = 64 << 10;
/// RocksDB syncs tables in steps of this size instead of in one piece.
const SYNC_STEP_BYTES: u64 = 1 << 20;
const READ_AHEAD_BYTES: usize = 1 << 20;

/// Options of a database, without compression: hashes are incompressible.
#[must_use]
pub fn database() -> Options {
    let mut options = Options::default();
    options.create_if_missing(true);
    options.set_compression_type(DBCompressionType::None);
    options.set_block_based_table_factory(&tables());
    options.set_write_buffer_size(WRITE_BUFFER_BYTES);
    options.set_max_write_buffer_number(WRITE_BUFFERS);
    options.set_target_file_size_base(TABLE_BYTES);
    options.set_max_bytes_for_level_base(LEVEL_BYTES);
    options.set_max_background_jobs(BACKGROUND_JOBS);
    options.set_max_file_opening_threads(1);
    options.set_max_open_files(OPEN_FILES_MAX);
    options.set_max_total_wal_size(2 * u64::try_from(WRITE_BUFFER_BYTES).unwrap_or(u64::MAX));
    // Recover the write-ahead log up to the first incomplete or damaged write, and ignore the rest.
    options.set_wal_recovery_mode(DBRecoveryMode::PointInTime);
    options.set_bytes_per_sync(SYNC_STEP_BYTES);
    options.set_max_manifest_file_size(MANIFEST_BYTES_MAX);
    options.set_manifest_preallocation_size(MANIFEST_STEP_BYTES);
    options.set_log_level(LogLevel::Warn);
    options.set_max_log_file_size(LOG_BYTES_MAX);
    options.set_keep_log_file_num(LOGS_RETAINED);
    options.set_stats_dump_period_sec(0);
    options.set_stats_persist_period_sec(0);
    options.enable_statistics();
    options.set_statistics_level(StatsLevel::ExceptHistogramOrTimers);
    options
}

fn tables() -> BlockBasedOptions {
    let mut tables = BlockBasedOptions::default();
    tables.set_block_cache(&Cache::new_lru_cache(BLOCK_CACHE_BYTES));
    tables.set_cache_index_and_filter_blocks(true);
    tables.set_block_size(BLOCK_BYTES);
    tables
}

/// Options of a durable write: when it returns, it and all earlier writes are on disk.
#[must_use]
pub fn synced() -> WriteOptions {
    let mut options = WriteOptions::default();
    options.set_sync(true);
    options
}

/// Options of one scan of a range.
#[must_use]
pub fn sweep((first, end): Bounds) -> ReadOptions {
    let mut options = ReadOptions::default();
    options.set_iterate_range(first..end);
    options.fill_cache(false);
    options.set_readahead_size(READ_AHEAD_BYTES);
    options
}
