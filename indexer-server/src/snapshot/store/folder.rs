//! Files of the database: detects a damaged database that RocksDB would take for an empty one, and moves it aside.

use crate::snapshot::{SET_ASIDE_MAX, StoreError};
use std::path::{Path, PathBuf};
use std::{fs, io};

/// Name of the database within the configured folder.
const DATABASE: &str = "db";

/// Name of the view that an export reads.
const EXPORT: &str = "db.export";

/// Path of the database.
pub(super) fn database(folder: &Path) -> PathBuf {
    folder.join(DATABASE)
}

/// Creates the folder, or checks the database in it.
///
/// # Errors
/// If the folder cannot be created, or has orphaned tables or logs: RocksDB would remove these files.
pub(super) fn prepare(database: &Path) -> Result<(), StoreError> {
    let failed = |error: io::Error| StoreError::of_io(database, &error);
    fs::create_dir_all(database).map_err(failed)?;
    if database.join("CURRENT").exists() {
        return Ok(());
    }
    for entry in fs::read_dir(database).map_err(failed)? {
        let name = entry.map_err(failed)?.file_name();
        let name = name.to_string_lossy();
        if name.ends_with(".sst") || name.ends_with(".log") {
            let folder = database.to_owned();
            let reason = format!("{name} exists, but CURRENT is missing");
            return Err(StoreError::Corrupt { folder, reason });
        }
    }
    Ok(())
}

/// Moves a damaged database to the first free name beside it.
///
/// # Errors
/// If there are already [`SET_ASIDE_MAX`] damaged databases, or the database cannot be moved.
pub(super) fn set_aside(database: &Path) -> Result<PathBuf, StoreError> {
    for number in 1..=SET_ASIDE_MAX {
        let aside = database.with_file_name(format!("{DATABASE}.corrupt-{number}"));
        if !aside.exists() {
            fs::rename(database, &aside).map_err(|error| StoreError::of_io(database, &error))?;
            return Ok(aside);
        }
    }
    Err(StoreError::CorruptAgain { folder: database.to_owned() })
}

/// Returns the path for the view that an export reads. Removes the view of an interrupted export.
///
/// # Errors
/// If the view of an interrupted export cannot be removed.
pub(super) fn export(database: &Path) -> Result<PathBuf, StoreError> {
    let view = database.with_file_name(EXPORT);
    match fs::remove_dir_all(&view) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(StoreError::of_io(&view, &error))
        }
        Err(_) | Ok(()) => Ok(view),
    }
}

/// Returns the total bytes of the database's files.
///
/// # Errors
/// If the folder cannot be listed.
pub(super) fn bytes(database: &Path) -> Result<u64, StoreError> {
    let failed = |error: io::Error| StoreError::of_io(database, &error);
    let mut bytes = 0;
    for entry in fs::read_dir(database).map_err(failed)? {
        match entry.map_err(failed)?.metadata() {
            Ok(file) => bytes += file.len(),
            // A compaction has just removed the file.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(failed(error)),
        }
    }
    Ok(bytes)
}
