//! Sequence marks: every write adds a mark with its number, so that gaps reveal lost writes. RocksDB detects changed
//! files, but not a truncated manifest of its own. It then applies later writes from the log to tables without earlier
//! writes: a state that never existed. The gap in the marks shows it.

use crate::snapshot::StoreError;
use crate::snapshot::format::{write_bounds, write_key, write_of};
use kvasir_store::options;
use rocksdb::{DB, WriteBatch, WriteOptions};
use std::fs;
use std::path::Path;

/// Marks are removed in groups of this size, and at least as many are kept: far more than the number of writes in one
/// log.
const MARKS_KEPT: u64 = 1 << 16;

/// Oldest remaining mark after a write.
const fn oldest(write: u64) -> u64 {
    (write / MARKS_KEPT * MARKS_KEPT).saturating_sub(MARKS_KEPT)
}

/// Writes a batch with its mark. Returns the number of the next write.
pub(super) fn write(
    database: &DB,
    mut batch: WriteBatch,
    number: u64,
    options: &WriteOptions,
) -> Result<u64, rocksdb::Error> {
    batch.put(write_key(number), []);
    if number.is_multiple_of(MARKS_KEPT) && oldest(number) > 0 {
        batch.delete_range(write_key(0), write_key(oldest(number)));
    }
    database.write_opt(batch, options)?;
    Ok(number + 1)
}

/// Name of the file with the number of the last write that was synced to disk.
const WRITTEN: &str = "kvasir-written";

/// Records that a write is on disk: RocksDB reads the log up to its first damage and does not report the rest.
pub(super) fn record_write(folder: &Path, next: u64) {
    // A failure here only means that later damage may go undetected.
    let _unnoted = fs::write(folder.join(WRITTEN), next.to_string());
}

/// Number of writes that were on disk and are lost.
pub(super) fn lost(folder: &Path, next: u64) -> u64 {
    let noted = fs::read_to_string(folder.join(WRITTEN)).ok();
    noted.and_then(|text| text.parse::<u64>().ok()).map_or(0, |noted| noted.saturating_sub(next))
}

/// Number of the next write.
///
/// # Errors
/// If an earlier write is missing.
pub(super) fn next(database: &DB, folder: &Path) -> Result<u64, StoreError> {
    let mut marks = database.raw_iterator_opt(options::sweep(write_bounds()));
    marks.seek_to_first();
    let mut first = None;
    let mut next = 0;
    while let Some(key) = marks.key() {
        let number = write_of(key).map_err(|error| StoreError::unreadable(folder, &error))?;
        if first.is_some() && number != next {
            return Err(missing(folder, next));
        }
        first = first.or(Some(number));
        next = number + 1;
        marks.next();
    }
    marks.status().map_err(|error| StoreError::of_rocksdb(folder, &error))?;
    match first {
        Some(first) if first != oldest(next - 1) => Err(missing(folder, oldest(next - 1))),
        Some(_) | None => Ok(next),
    }
}

fn missing(folder: &Path, number: u64) -> StoreError {
    let reason = format!("write {number} is missing, although later writes exist");
    StoreError::Corrupt { folder: folder.to_owned(), reason }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_removed_and_every_gap_is_found() {
        let folder = tempfile::tempdir().expect("a folder");
        let database = DB::open(&options::database(), folder.path()).expect("a database");
        let mut number = 0;
        for _write in 0..3 * MARKS_KEPT + 7 {
            let batch = WriteBatch::default();
            number = write(&database, batch, number, &WriteOptions::default()).expect("room");
            if number % 10_000 == 0 {
                assert_eq!(next(&database, folder.path()), Ok(number));
            }
        }
        let bounds = options::sweep(write_bounds());
        let kept = database.iterator_opt(rocksdb::IteratorMode::Start, bounds).count() as u64;
        assert_eq!(kept, MARKS_KEPT + 7);
        for gone in [2 * MARKS_KEPT, 2 * MARKS_KEPT + 1, number - 2] {
            database.delete(write_key(gone)).expect("room");
            let error = next(&database, folder.path()).expect_err("a gap");
            assert!(error.to_string().contains(&format!("write {gone} is missing")), "{error}");
            database.put(write_key(gone), []).expect("room");
        }
        assert_eq!(next(&database, folder.path()), Ok(number));
    }
}
